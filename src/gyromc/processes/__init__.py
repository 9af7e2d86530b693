"""Several processes that compute one run: how they start, how many they are, and how they come to the same decisions.

`start` connects this process to the others. `count` and `index` say how many there are and which one this is. `agree` and
`everyone` exchange small values, `gathered` and `joined` whole arrays; all processes must call these four in the same order. With
one process all of them return at once, and no distributed runtime is needed. `finish` waits for the
others at the end, `leave` ends this process with a status and tells them.

`rollcall` brings the processes together before JAX starts, `watching` ends all of them when one is lost, `exchange` has the rest.
"""

from gyromc.processes.exchange import agree, count, everyone, gathered, index, joined
from gyromc.processes.starting import start
from gyromc.processes.watching import LOST, finish, leave

__all__ = ["LOST", "agree", "count", "everyone", "finish", "gathered", "index", "joined", "leave", "start"]
