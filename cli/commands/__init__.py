"""The commands, by subject: runs, journal, store."""
