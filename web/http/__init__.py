"""What every route shares: authentication, bodies, parameters, errors, JSON responses."""
