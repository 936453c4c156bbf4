"""What people are told: notices, notifications, figures."""
