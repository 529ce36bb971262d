//! The loopback device.

#![expect(
    unsafe_code,
    reason = "nix has no calls for the flags of network devices"
)]

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd as _;

/// Brings the loopback device of the calling thread's network namespace up. In a new one it is
/// down, and not even `127.0.0.1` can be reached.
///
/// # Errors
/// If the process lacks the right, or there is no such device.
pub fn raise_loopback() -> io::Result<()> {
    let socket = UdpSocket::bind(("0.0.0.0", 0))?;
    let mut name = [0; libc::IFNAMSIZ];
    for (place, byte) in name.iter_mut().zip(*b"lo") {
        *place = libc::c_char::try_from(byte).unwrap_or(0);
    }
    let mut request = libc::ifreq {
        ifr_name: name,
        ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_flags: 0 },
    };
    // SAFETY: `request` is an `ifreq` with a name that ends with a NUL; the kernel writes its
    // flags and keeps no pointer. The descriptor is an open socket.
    let asked = unsafe {
        libc::ioctl(
            socket.as_raw_fd(),
            libc::SIOCGIFFLAGS as libc::Ioctl,
            &raw mut request,
        )
    };
    if asked != 0 {
        return Err(io::Error::last_os_error());
    }
    let up = libc::c_short::try_from(libc::IFF_UP).map_err(io::Error::other)?;
    // SAFETY: the call above has written the flags, and no other field of the union since.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    request.ifr_ifru.ifru_flags = flags | up;
    // SAFETY: as for the first call; this one only reads the request.
    let told = unsafe {
        libc::ioctl(
            socket.as_raw_fd(),
            libc::SIOCSIFFLAGS as libc::Ioctl,
            &raw const request,
        )
    };
    if told != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
