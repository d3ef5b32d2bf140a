"""Settings: sections, ranges, schedules, presets and the command line."""
