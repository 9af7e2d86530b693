"""What a plan will deliver, without sampling."""
