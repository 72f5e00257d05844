"""The client. Everything that is meant for use is exported by `agent_reach` itself."""
