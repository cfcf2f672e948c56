"""HTTP of all clients: addresses, repeated requests, limits of exchanges, and documents."""
