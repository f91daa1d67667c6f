"""What several packages need of asyncio: timers and threads."""
