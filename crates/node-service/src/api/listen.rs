//! The API's socket.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::Path;

use anyhow::Context as _;

/// Only its owner opens the socket; root always can. Whoever wants others to ask changes it, and
/// finds that the peer's user is checked, too.
const SOCKET_MODE: u32 = 0o600;

/// Listens on `socket`. It appears complete, in the place of what an earlier node left there: no
/// client meets a moment without a socket, or one with other permissions.
///
/// # Errors
/// If the socket cannot be made.
pub fn listen(socket: &Path) -> anyhow::Result<UnixListener> {
    let aside = socket.with_extension(std::process::id().to_string());
    let bound = (|| {
        match fs::remove_file(&aside) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&aside)?;
        fs::set_permissions(&aside, fs::Permissions::from_mode(SOCKET_MODE))?;
        fs::rename(&aside, socket)?;
        Ok(listener)
    })();
    bound.with_context(|| format!("listening on {}", socket.display()))
}
