"""The one error that devcluster shows to a person.

Everything that can go wrong for a reason the reader can mend is raised as this type, with a message that names
the thing, what was tried and the way out; the command line prints it as one line, without a traceback.
"""

from __future__ import annotations


class DevclusterError(Exception):
    """Something that the reader can mend: no root, no disk, a name in use, a component that does not start."""
