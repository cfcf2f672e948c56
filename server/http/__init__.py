"""HTTP around the routes: authentication, limits and problem documents."""
