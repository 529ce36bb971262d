"""What a program on the bridge tries, to reach others or to pass for them. Prints a line for each attempt, as
attacks.py does. Arguments: the address of a neighbour, the machine's address, a port at which a service listens on
the machine's loopback device only, and a port at which the neighbour listens."""

import ctypes
import errno
import fcntl
import os
import socket
import struct
import sys

neighbour, gateway = sys.argv[1:3]
local_port, port = map(int, sys.argv[3:5])
IP_OPTIONS, IP_FREEBIND, IP_TRANSPARENT = 4, 15, 19
SIOCSIFFLAGS, SIOCSIFADDR, SIOCSIFHWADDR, SIOCADDRT, SIOCSARP = 0x8914, 0x8916, 0x8924, 0x890B, 0x8955
PATIENCE_SECONDS = 2


def attempt(name, act, refusals=(errno.EPERM,)):
    try:
        came = act()
    except TimeoutError:
        print(name, "refused", sep=": ")
    except OSError as error:
        said = "refused" if error.errno in refusals else f"failed otherwise: {error}"
        print(name, said, sep=": ")
    else:
        print(name, f"POSSIBLE {came!r}", sep=": ")


def new(kind=socket.SOCK_STREAM, family=socket.AF_INET):
    made = socket.socket(family, kind)
    made.settimeout(PATIENCE_SECONDS)
    return made


def connect(address, port, own=None, option=None):
    with new() as own_socket:
        if option:
            own_socket.setsockopt(*option)
        if own:
            own_socket.bind((own, 0))
        own_socket.connect((address, port))
        own_socket.sendall(b"attack")
        return own_socket.getpeername()


def send(address, own=None, options=()):
    """Sends a datagram. That it is sent is no success: the neighbour tells what it has received."""
    with new(socket.SOCK_DGRAM) as own_socket:
        for option in options:
            own_socket.setsockopt(*option)
        if own:
            own_socket.bind((own, 0))
        own_socket.sendto(b"attack", (address, port))


def sent(name, *arguments, **named):
    try:
        send(*arguments, **named)
    except OSError:
        pass
    print(name, "refused", sep=": ")


def control(number, request):
    with new(socket.SOCK_DGRAM) as own_socket:
        return fcntl.ioctl(own_socket, number, request)


def netlink(kind, body):
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as own_socket:
        own_socket.settimeout(PATIENCE_SECONDS)
        # NLM_F_REQUEST, NLM_F_ACK, NLM_F_CREATE
        own_socket.send(struct.pack("=IHHII", 16 + len(body), kind, 0x405, 1, 0) + body)
        answer = own_socket.recv(4096)
    if code := struct.unpack_from("=i", answer, 16)[0]:
        raise OSError(-code, os.strerror(-code))


def device_request(address=None, flags=0):
    name = b"eth0".ljust(16, b"\0")
    if address:
        return name + struct.pack("=HH4s8x", socket.AF_INET, 0, socket.inet_aton(address))
    return name + struct.pack("=h14x", flags)


eth0 = socket.if_nametoindex("eth0")
other = socket.inet_aton(neighbour)

# A neighbour, by every way that there is.
NOBODY = (errno.EHOSTUNREACH, errno.ENETUNREACH)
attempt("connect to a neighbour", lambda: connect(neighbour, port), NOBODY)
sent("send to a neighbour", neighbour)
sent("send to all", neighbour.rsplit(".", 1)[0] + ".255", options=[(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)])
sent("send to all devices", "255.255.255.255", options=[(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)])
sent("send to a group", "224.0.0.1")
# By way of the machine, which is to pass it on: a loose source route.
route = bytes([131, 7, 4]) + other + b"\0"
attempt("connect by a route of its own", lambda: connect(gateway, port, option=(socket.IPPROTO_IP, IP_OPTIONS, route)),
        NOBODY + (errno.ECONNREFUSED, errno.EPERM, errno.EINVAL))
sent("send by a route of its own", gateway, options=[(socket.IPPROTO_IP, IP_OPTIONS, route)])
with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as six:
    attempt("send by IPv6", lambda: six.sendto(b"attack", ("ff02::1", port, 0, eth0)),
            NOBODY + (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT))

# The machine's services on its loopback device, such as the daemon's.
attempt("the machine's loopback", lambda: connect(gateway, local_port), (errno.ECONNREFUSED,))
attempt("own loopback", lambda: connect("127.0.0.1", local_port), (errno.ECONNREFUSED,))

# Credentials of a machine in a cloud. The route refuses it: nothing is sent.
attempt("metadata", lambda: connect("169.254.169.254", 80), (errno.EACCES,))

# To be another one.
attempt("set its address", lambda: control(SIOCSIFADDR, device_request(neighbour)))
attempt("set its hardware address", lambda: control(SIOCSIFHWADDR, device_request()))
attempt("set its device's flags", lambda: control(SIOCSIFFLAGS, device_request(flags=1 | 0x100)))
attempt("add an address", lambda: netlink(20, struct.pack("=BBBBI", 2, 32, 0, 0, eth0) + struct.pack("=HH4s", 8, 2, other)))
attempt("add a route", lambda: netlink(24, struct.pack("=BBBBBBBBI", 2, 16, 0, 0, 254, 4, 253, 1, 0)
        + struct.pack("=HH4sHHI", 8, 1, socket.inet_aton("169.254.0.0"), 8, 4, eth0)))
attempt("remove a route", lambda: netlink(25, struct.pack("=BBBBBBBBI", 2, 16, 0, 0, 254, 0, 255, 0, 0)
        + struct.pack("=HH4s", 8, 1, socket.inet_aton("169.254.0.0"))))
attempt("change the device", lambda: netlink(16, struct.pack("=BxHiII", 0, 0, eth0, 0, 1)))
attempt("add a neighbour's hardware address", lambda: netlink(28, struct.pack("=BxxxiHBB", 2, eth0, 128, 0, 0)
        + struct.pack("=HH4s", 8, 1, other) + struct.pack("=HH6sxx", 10, 2, b"\2\0\0\0\0\1")))
attempt("be a neighbour", lambda: send(gateway, own=neighbour), (errno.EADDRNOTAVAIL,))
attempt("be a neighbour, unchecked", lambda: send(gateway, own=neighbour, options=[(socket.IPPROTO_IP, IP_FREEBIND, 1)]),
        (errno.EINVAL, errno.EADDRNOTAVAIL, errno.ENETUNREACH))
attempt("be a neighbour, transparently",
        lambda: send(gateway, own=neighbour, options=[(socket.IPPROTO_IP, IP_TRANSPARENT, 1)]))
attempt("send frames", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW), (errno.EPERM, errno.EAFNOSUPPORT))
attempt("send packets", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 255))
attempt("set a setting", lambda: open("/proc/sys/net/ipv4/ip_forward", "w"), (errno.ENOENT, errno.EACCES, errno.EROFS))
print("done")
