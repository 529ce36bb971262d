//! Certificates for both sides of a TLS connection on loopback.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use serving::transport::TlsFiles;

use crate::process::run_ok;

/// Making a key takes a second on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);
/// Both sides have this name; the client dials it as an address.
const NAMES: &str = "subjectAltName=DNS:bench,IP:127.0.0.1\n";

/// Makes an authority and a certificate that is good for both sides, in the directory `dir`, with
/// the names that `nicfetch` looks for.
///
/// # Errors
/// If `openssl` fails.
pub fn make(dir: &Path) -> anyhow::Result<TlsFiles> {
    fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
    fs::write(dir.join("names"), NAMES).context("writing the names of a certificate")?;
    for arguments in [
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ca.key -out ca.pem -subj /CN=authority -days 2",
        "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout key.pem -out request -subj /CN=bench",
        "x509 -req -in request -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names -out cert.pem",
    ] {
        let mut openssl = Command::new("openssl");
        openssl.args(arguments.split(' ')).current_dir(dir);
        run_ok(openssl, DEADLINE).context("making certificates")?;
    }
    Ok(TlsFiles {
        certificate: dir.join("cert.pem"),
        key: dir.join("key.pem"),
        authority: dir.join("ca.pem"),
    })
}
