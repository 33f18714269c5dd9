"""The tool `image_generation`: images by a model of `/v1/images/*`, for a model of any upstream."""
