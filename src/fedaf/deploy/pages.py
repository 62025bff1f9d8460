"""The pages that ``fedaf deploy init`` writes: what to copy where, and what to run on each machine."""

from collections.abc import Sequence

from fedaf import __version__


def deployment_page(*, server: str, port: int, sites: Sequence[str], ends: str | None, trial: bool) -> str:
    """For whoever sets the deployment up. ``ends`` is when the server's certificate does; without one, certificates
    are brought by others."""
    first = sites[0]
    return f"""\
# Deployment of {len(sites)} sites with the server {server}

| folder | goes to | holds secrets |
|---|---|---|
| `server/` | {server} | `server.key` |
{"".join(f"| `sites/{name}/` | {name} | `node.key` |{chr(10)}" for name in sites)}\
{"" if ends is None else "| `authority/` | nowhere: it stays here | `ca.key` |" + chr(10)}
{_certificates(server, ends)}
Keys of nodes were made here, which is right for a trial: whoever makes a key can act as its site. For real data each
site makes its own, and sends only the public half:

```sh
# {first}, in its folder, instead of the node.key that came with it
rm -f node.key node.pub
ssh-keygen -q -t ecdsa -b 384 -N "" -C "" -f node.key && mv node.key.pub node.pub
```

Then `node.pub` goes to the server as `keys/{first}.pub`, by a way on which nobody can exchange it: in a signed mail, or
with its fingerprint (`ssh-keygen -lf node.pub`) read out over the telephone.

## 1. Install, on every machine

Python 3.11 or newer, and the same version everywhere. Nothing is downloaded later: no telemetry, no update check, no
installation at run time.

```sh
# every machine
pip install 'fedaf[flower]=={__version__}'
```

## 2. Copy the folders

Over a channel that keeps secrets; file modes must stay.

```sh
# here
scp -rp server {server}:fedaf-server
{chr(10).join(f"scp -rp sites/{name} {name}:fedaf-site" for name in sites)}
```

Sites need no open port. The server needs one, {port}, open to the sites: its firewall should admit nobody else. Only
programs on the server itself may start runs or register keys; others are refused on that port.

## 3. Start the link, on the server

It goes on until Ctrl-C or SIGTERM, and remembers registered keys in `link.db`.

```sh
# server, in its folder
fedaf deploy link
```

## 4. Register the keys of the sites, on the server

```sh
# server, in its folder, in another shell
. ./env.sh
{chr(10).join(f"flwr supernode register keys/{name}.pub link" for name in sites)}
```

## 5. Say what a site shares, and start its node, at every site

{_data(trial)}

`policy.toml` bounds what the server may ask of the site. `config.toml` is what it means to ask, and
`fedaf policy check config.toml --policy policy.toml` says whether that would be refused, and why. A node runs the code
of its own installation, whatever the server sends.

```sh
{chr(10).join(f"# {name}, in its folder{chr(10)}fedaf deploy node" for name in sites)}
```

## 6. Run, on the server

`config.toml` says what is run, and `app/` is what Flower hands to the nodes for it: a name only, as the code is what
each has installed. The command follows the run and prints its table; it ends with 0 if, and only if, the run ended
well.

```sh
# server, in its folder, in another shell
fedaf deploy run
```

## Watch

Progress is on the screen of `fedaf deploy run`. `run/metrics.jsonl` has a line a round: accuracy, bytes and seconds,
and who failed and why. Logs are `logs/link.log` on the server and `logs/node.log` at a site.

```sh
# server, to look around
. ./env.sh
flwr supernode list link
flwr list link
```

## Stop and resume

Ctrl-C in `fedaf deploy run` stops the run; `fedaf deploy run` goes on after the last whole round. So it does after the
server was restarted: start the link again, nodes come back by themselves. A site that is gone is left out of the round,
and takes part again when it is back; what it must remember lies in its `state/`. A next run needs a directory of its
own: `fedaf deploy run --out second`. To let a site go for good, find its number with `flwr supernode list link`:

```sh
# server, when a site leaves
. ./env.sh
flwr supernode unregister NUMBER link
```

## Renew certificates

{_renewal(server, ends)}
A key of a node does not end. To exchange one, make a new one as above, register it, and unregister the old one.
"""


def site_page(*, name: str, server: str, port: int) -> str:
    """For the owner of a site."""
    return f"""\
# {name}

This site takes part in a deployment with the server {server}, port {port}. No port need be open here.

| file | what |
|---|---|
| `node.toml` | where the server is, and where this site's data are |
| `policy.toml` | what the server may ask of this site; what goes beyond is refused, with the reason |
| `config.toml` | what the server means to ask: `fedaf policy check config.toml --policy policy.toml` |
| `ca.crt` | by which the server is known |
| `node.key`, `node.pub` | by which the server knows this site; the first is secret |
| `state/` | what this site remembers between rounds; keep it |
| `logs/node.log` | what happened |

```sh
pip install 'fedaf[flower]=={__version__}'
fedaf deploy node        # in this folder; until Ctrl-C or SIGTERM
```

Whoever made `node.key` can act as this site. If that was not you, make your own and send `node.pub` to the server:

```sh
rm -f node.key node.pub
ssh-keygen -q -t ecdsa -b 384 -N "" -C "" -f node.key && mv node.key.pub node.pub
```
"""


def _certificates(server: str, ends: str | None) -> str:
    if ends is not None:
        return f"""\
The server's certificate is valid until {ends}, signed by an authority made for this deployment alone. Whoever has
`authority/ca.key` can pose as the server: keep it off the network, and give it to nobody.
"""
    return f"""\
Certificates are yours to bring, before anything is started:

| file | what |
|---|---|
| `server/server.crt` | a certificate for {server} and 127.0.0.1, PEM, with those between it and the authority |
| `server/server.key` | its private key, PEM without passphrase, mode 0600 |
| `server/ca.crt`, `sites/*/ca.crt` | the certificate of the authority that signed it, PEM |

The link's own programs reach it on 127.0.0.1. If your authority signs no such address, put `host = "{server}"` into
`server/link.toml`: they then use that name.
"""


def _data(trial: bool) -> str:
    if trial:
        return """\
As written, `data = "partition:N"` in `node.toml` gives every site a share of the run's own data set: that tries network
and keys without anybody's data. A site's own images are `folder:PATH`, a folder for each class, or `npz:FILE`; `[data]`
in the server's `config.toml` then has `name = "none"`, `shape` and `classes`."""
    return """\
In `node.toml`, `data` is the site's own images: `folder:PATH`, a folder for each class, or `npz:FILE`."""


def _renewal(server: str, ends: str | None) -> str:
    if ends is None:
        return f"Put new files in the place of the old ones on {server}, and start the link again.\n"
    return f"""\
Before {ends}, here:

```sh
# here, before the certificate ends
fedaf deploy renew .
```

Copy `server/server.crt` and `server/server.key` to {server} and start the link again. Sites need nothing, as long as
the authority is the same: it lasts 825 days. After that, `fedaf deploy init` makes a new deployment.
"""
