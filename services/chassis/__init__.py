"""What every service stands on: settings, server, auth, errors, logs, telemetry, pools. Knows nothing of messages."""
