{{/* The name of the release's objects. */}}
{{- define "backburner.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{/* What selects the pods of a component: (dict "root" $ "component" "web"). */}}
{{- define "backburner.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "backburner.labels" -}}
{{ include "backburner.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{- define "backburner.image" -}}
{{- $name := required "image.repository: name your registry's image" .Values.image.repository -}}
{{- if .Values.image.digest }}{{ printf "%s@%s" $name .Values.image.digest }}{{ else }}{{ printf "%s:%s" $name (.Values.image.tag | default .Chart.AppVersion) }}{{ end }}
{{- end }}

{{- define "backburner.allowed-hosts" -}}
{{- with .Values.sandbox.allowedHosts -}}
- {name: BACKBURNER_CODE__ALLOWED_HOSTS, value: {{ join "," . | quote }}}
{{- end }}
{{- end }}

{{- define "backburner.sandbox-image" -}}
{{- $image := .Values.sandbox.image -}}
{{- $name := required "sandbox.image.repository: name your registry's image" $image.repository -}}
{{- if $image.digest }}{{ printf "%s@%s" $name $image.digest }}{{ else }}{{ printf "%s:%s" $name ($image.tag | default .Chart.AppVersion) }}{{ end }}
{{- end }}

{{- define "backburner.secret" -}}
{{ required "existingSecret: name the secret with DATABASE_URL and REDIS_URL" .Values.existingSecret }}
{{- end }}

{{- define "backburner.service-account" -}}
{{ .Values.serviceAccount.name | default (ternary (include "backburner.name" .) "default" .Values.serviceAccount.create) }}
{{- end }}

{{/* The security of every container. */}}
{{- define "backburner.container-security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* The first lines of every pod: (dict "root" $ "component" "web" "values" .Values.web), where values may lack keys. */}}
{{- define "backburner.pod" -}}
automountServiceAccountToken: false
{{- if or (ne .component "migrate") (not .root.Values.serviceAccount.create) }}
serviceAccountName: {{ include "backburner.service-account" .root }}
{{- end }}
# Kubernetes' own variables for Services would begin with BACKBURNER_ too.
enableServiceLinks: false
# Process 1 is then the pod's pause process: Python as process 1 ignores SIGTERM while it imports.
shareProcessNamespace: true
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- with .values.topologySpread }}
topologySpreadConstraints:
{{- $labels := include "backburner.selector" $ | fromYaml }}
{{- range . }}
  - {{- toYaml (merge (dict "labelSelector" (dict "matchLabels" $labels)) .) | nindent 4 }}
{{- end }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* A change of the configuration or of the secret replaces the pods that read it: as for a pod. */}}
{{- define "backburner.pod-annotations" -}}
checksum/config: {{ printf "%s%s" .root.Values.config (toYaml .root.Values.settings) | sha256sum }}
checksum/secret: {{ include "backburner.secret-checksum" .root | quote }}
{{- with .values.podAnnotations }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Of what the secret has now; empty where the chart is rendered without a cluster. */}}
{{- define "backburner.secret-checksum" -}}
{{- $secret := lookup "v1" "Secret" .Release.Namespace (include "backburner.secret" .) }}
{{- if .Values.secretChecksum }}{{ .Values.secretChecksum }}{{ else if $secret }}{{ toJson $secret.data | sha256sum }}{{ end }}
{{- end }}

{{/* The settings of web and workers. */}}
{{- define "backburner.environment" -}}
envFrom:
  - secretRef: {name: {{ include "backburner.secret" . }}}
env:
  - {name: BACKBURNER_DATABASE_SCHEMA, value: {{ .Values.databaseSchema | quote }}}
  - {name: BACKBURNER_METRICS__HOST, value: "0.0.0.0"}
  - {name: BACKBURNER_METRICS__PORT, value: {{ .Values.metrics.port | quote }}}
  # Uploads whose model comes behind their file wait in /tmp.
  - {name: BACKBURNER_WEB__SPOOLS, value: 48MiB}
  - {name: BACKBURNER_WEB__SPOOLS_PER_PROJECT, value: 36MiB}
{{- if .Values.config }}
  - {name: BACKBURNER_CONFIG, value: /etc/backburner/backburner.toml}
{{- end }}
{{- if .Values.files.existingClaim }}
  - {name: BACKBURNER_FILES__FOLDER, value: /files}
{{- end }}
{{- if .Values.sandbox.enabled }}
{{- $name := include "backburner.name" . }}
{{- $urls := list }}
{{- range $number := until (int .Values.sandbox.replicas) }}
{{- $urls = append $urls (printf "http://%s-sandbox-%d.%s-sandbox:8600" $name $number $name) }}
{{- end }}
  - {name: BACKBURNER_CODE__SANDBOXES, value: {{ join "," $urls | quote }}}
{{- include "backburner.allowed-hosts" . | nindent 2 }}
{{- end }}
{{- range $name, $value := .Values.settings }}
  - {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . | indent 2 }}
{{- end }}
{{- end }}

{{- define "backburner.mounts" -}}
volumeMounts:
  - {name: tmp, mountPath: /tmp}
{{- if .Values.config }}
  - {name: config, mountPath: /etc/backburner, readOnly: true}
{{- end }}
{{- if .Values.files.existingClaim }}
  - {name: files, mountPath: /files}
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . | indent 2 }}
{{- end }}
{{- end }}

{{- define "backburner.volumes" -}}
volumes:
  - {name: tmp, emptyDir: {medium: Memory, sizeLimit: 64Mi}}
{{- if .Values.config }}
  - {name: config, configMap: {name: {{ include "backburner.name" . }}}}
{{- end }}
{{- if .Values.files.existingClaim }}
  - {name: files, persistentVolumeClaim: {claimName: {{ .Values.files.existingClaim }}}}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . | indent 2 }}
{{- end }}
{{- end }}

{{/* A worker's Deployment: (dict "root" $ "component" "worker" "values" .Values.worker "arguments" (list …) "scaled" false). */}}
{{- define "backburner.worker" -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ include "backburner.name" .root }}-{{ .component }}
  labels: {{- include "backburner.labels" . | nindent 4 }}
spec:
  {{- if not .scaled }}
  replicas: {{ .values.replicas }}
  {{- end }}
  selector:
    matchLabels: {{- include "backburner.selector" . | nindent 6 }}
  strategy:
    rollingUpdate: {maxSurge: 1, maxUnavailable: 0}
  template:
    metadata:
      labels: {{- include "backburner.labels" . | nindent 8 }}
      annotations: {{- include "backburner.pod-annotations" . | nindent 8 }}
    spec:
      {{- include "backburner.pod" . | nindent 6 }}
      terminationGracePeriodSeconds: {{ .values.terminationGracePeriodSeconds }}
      containers:
        - name: worker
          image: {{ include "backburner.image" .root }}
          imagePullPolicy: {{ .root.Values.image.pullPolicy }}
          args: {{- toYaml .arguments | nindent 12 }}
          {{- include "backburner.environment" .root | nindent 10 }}
          ports:
            - {name: metrics, containerPort: {{ .root.Values.metrics.port }}}
          # No liveness probe: a kill counts as a crash of the worker's responses, and a worker that
          # hangs is declared dead by the others.
          readinessProbe:
            exec: {command: [backburner, health]}
            periodSeconds: 15
            timeoutSeconds: 10
          securityContext: {{- include "backburner.container-security" .root | nindent 12 }}
          resources: {{- toYaml .values.resources | nindent 12 }}
          {{- include "backburner.mounts" .root | nindent 10 }}
      {{- include "backburner.volumes" .root | nindent 6 }}
{{- end }}
