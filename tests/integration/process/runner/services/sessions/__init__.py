"""Sessions inside of jobs, as somebody types them."""
