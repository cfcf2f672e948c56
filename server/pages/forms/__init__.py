"""The form that creates a study: fields, errors, preview and routes."""
