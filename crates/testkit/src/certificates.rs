//! Certificates for TLS, made by OpenSSL.

use std::path::Path;
use std::process::Command;

/// Makes an authority (the file `authority` in `dir`) and a certificate of it (`certificate` and `key`) for `CN=vm` and for
/// these names, such as `DNS:vm,IP:127.0.0.1`. They are valid for two days.
///
/// # Panics
/// If `openssl` is missing or fails.
pub fn make(dir: &Path, names: &str) {
    let openssl = |line: &str| {
        let output = Command::new("openssl")
            .args(line.split(' '))
            .current_dir(dir)
            .output()
            .unwrap();
        assert!(output.status.success(), "openssl {line}: {output:?}");
    };
    let new_key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
    openssl(&format!(
        "req -x509 {new_key} -days 2 -subj /CN=authority -keyout authority.key -out authority"
    ));
    openssl(&format!(
        "req {new_key} -subj /CN=vm -keyout key -out request"
    ));
    let extensions = format!("subjectAltName={names}\n");
    std::fs::write(dir.join("extensions"), extensions).unwrap();
    openssl(
        "x509 -req -in request -CA authority -CAkey authority.key -CAcreateserial -days 2 \
         -extfile extensions -out certificate",
    );
}
