"""What a plan will deliver, before it runs. Never imports an engine."""
