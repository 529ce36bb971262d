//! `nicfetch serve --size`: what machines give, however much, and what is imported beside it.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use blockservice::client::{Client, ClientConfig, ClientError, Patience};
use blockservice::wire::ErrorCode;
use serving::transport::Address;

const MIB: u64 = 1 << 20;
const SIZE: u64 = 256 * MIB;

/// Bytes that nothing compresses.
fn noise(seed: u64, len: u64) -> Vec<u8> {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&seed.to_le_bytes());
    let mut bytes = vec![0; usize::try_from(len).unwrap()];
    hasher.finalize_xof().fill(&mut bytes);
    bytes
}

/// Returns what everything in a directory takes.
fn bytes_in(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).unwrap().map(Result::unwrap);
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => bytes_in(&entry.path()),
        Ok(meta) => meta.len(),
        Err(_) => 0, // it went meanwhile
    });
    sizes.sum()
}

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ended = self.0.kill().and_then(|()| self.0.wait());
    }
}

impl Server {
    fn start(dir: &Path) -> Self {
        let unix = |name: &str| format!("unix:{}", dir.join(name).display());
        let mut server = Command::new(env!("CARGO_BIN_EXE_nicfetch"));
        server
            .args(["serve", "--blocks-open", "--size", "256M"])
            .args(["--blocks", &unix("blocks.sock")])
            .args(["--admin", &unix("admin.sock")])
            .arg("--store")
            .arg(dir.join("nic"))
            .env_remove("YOLOFS_LOG");
        let mut server = Self(server.stdout(Stdio::piped()).spawn().unwrap());
        let lines = BufReader::new(server.0.stdout.take().unwrap()).lines();
        let told = lines
            .map_while(Result::ok)
            .any(|line| line.starts_with("blocks "));
        assert!(told, "it ended at once");
        server
    }
}

fn client(dir: &Path, name: &str) -> Client {
    let patience = Patience {
        transfer: Duration::from_secs(120),
        ..Patience::default()
    };
    let client = Client::start(ClientConfig {
        address: Address::Unix(dir.join("blocks.sock")),
        others: Vec::new(),
        name: name.as_bytes().to_vec(),
        key: None,
        tls: None,
        patience,
    });
    let client = client.unwrap();
    assert!(client.wait_until_connected(Duration::from_secs(60)));
    client
}

#[test]
fn boot_images_that_machines_give_count_in_the_size() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let server = Server::start(dir);
    for (seed, name) in (0..).zip(["a", "b"]) {
        let source = dir.join(name);
        fs::create_dir(&source).unwrap();
        fs::write(source.join("file"), noise(seed, 100 * MIB)).unwrap();
        let mut import = Command::new(env!("CARGO_BIN_EXE_nicfetch"));
        import.args(["import", "--name", name]).arg(&source);
        let admin = format!("unix:{}", dir.join("admin.sock").display());
        let imported = import.args(["--admin", &admin]).output().unwrap();
        assert!(imported.status.success(), "{imported:?}");
    }
    let nic = dir.join("nic");
    let (one, two) = (client(dir, "one"), client(dir, "two"));
    let kept = noise(50, 8 * MIB);
    let id = one.keep_boot(b"a", &kept).unwrap();
    let mut given = 0;
    for (seed, source) in (100..124).zip([b"a", b"b"].into_iter().cycle()) {
        let image = noise(seed, 10 * MIB);
        two.keep_boot(source, &image).unwrap();
        given += image.len() as u64;
        let takes = bytes_in(&nic);
        assert!(takes <= SIZE, "{takes} bytes after {given}");
    }
    let boots = one.boots(b"a").unwrap();
    let mine = boots.iter().find(|boot| boot.id == id).unwrap();
    assert!(one.boot(b"a", mine).unwrap() == kept);
    // One that is as long as what all may take is refused before much of it has come.
    let refused = two.keep_boot(b"a", &noise(7, 33 * MIB));
    assert!(
        matches!(
            &refused,
            Err(ClientError::Refused {
                code: ErrorCode::TooLarge,
                ..
            })
        ),
        "{refused:?}"
    );
    drop(server);
    // What an earlier release let in beyond its size goes with the next start.
    let boots = nic.join("sources/boots");
    let of_a = fs::read_dir(&boots)
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    for number in 1..5 {
        let name = format!("{number:016x}-{}", blocks::ContentId::of(&[number]));
        fs::write(of_a.join(name), noise(u64::from(number), 64 * MIB)).unwrap();
    }
    assert!(bytes_in(&nic) > SIZE);
    let _server = Server::start(dir);
    assert!(bytes_in(&nic) <= SIZE);
}
