"""`sigprop mcp`: check, predict, diff and plan for an agent."""

from __future__ import annotations


def mcp_command() -> None:
    """Serve check, predict, diff and plan to an agent.

    Model Context Protocol over stdio; opens no port.
    """
    from sigprop.integrations.mcp import serve

    serve()
