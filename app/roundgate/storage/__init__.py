"""What is kept between requests, where anything is: ports in `base`, one module a store."""
