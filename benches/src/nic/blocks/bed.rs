//! What is read, and from whom: one source in three services, and as a blob in a registry.

mod floor;

use std::fmt;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use blockservice::client::{Client, ClientConfig, Patience, Remote};
use chunks::index::Index;
use serving::transport::{Address, TlsClient};

use crate::nic::certificates;
use crate::nic::http::Connection;
use crate::nic::registry::Registry;
use crate::nic::service::{BLOCKS, Nicfetch, Server};
use crate::process::run_ok;
use crate::rounds::Shuffle;

use floor::Floor;

/// Bytes of a whole chunk, and of a small one.
pub(super) const CHUNK: usize = 128 << 10;
pub(super) const SMALL: usize = 4 << 10;

/// Small files, more than a client keeps.
const SMALL_FILES: usize = 4096;
/// Chunks of noise, more than a client keeps.
const NOISE_CHUNKS: usize = 512;
/// Copying a store.
const COPY_DEADLINE: Duration = Duration::from_secs(300);
/// The client asks within this on a busy machine.
const CONNECT: Duration = Duration::from_secs(30);
/// What the source is called.
const NAME: &str = "bench";

/// How client and service are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    Tcp,
    Unix,
    Tls,
}

impl Transport {
    pub(super) const ALL: [Self; 3] = [Self::Tcp, Self::Unix, Self::Tls];
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "TCP",
            Self::Unix => "unix",
            Self::Tls => "TLS",
        })
    }
}

/// What is in the chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// Programs and libraries, which compress: whoever reads them decompresses them.
    Files,
    /// Noise, which is stored as it is.
    Noise,
    /// Files of 4 KiB.
    Small,
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Files => "files",
            Self::Noise => "noise",
            Self::Small => "small files",
        })
    }
}

/// A service, and a client of it.
struct Side {
    remote: Remote,
    // Dropped in this order.
    _client: Client,
    _server: Server,
}

/// Everything that is read from.
pub(super) struct Bed {
    sides: Vec<Side>,
    /// By TCP, from a service that keeps nothing in memory.
    cold: Side,
    files: Vec<u32>,
    noise: Vec<u32>,
    small: Vec<u32>,
    ranges: Connection,
    blob: String,
    blob_bytes: u64,
    _registry: Registry,
    pub(super) floor: Floor,
}

impl Bed {
    /// Makes the source of `content`, a large file of real files' bytes, and starts everybody, in
    /// the directory `home`.
    pub(super) fn lay(nicfetch: &Nicfetch, content: &Path, home: &Path) -> anyhow::Result<Self> {
        let source = home.join("source");
        make_source(content, &source)?;
        let registry = Registry::start_anywhere(&home.join("registry"))?;
        let blob = registry.keep_blob(&source.join("files"))?;
        let first = home.join("store-TCP");
        nicfetch.import(&first, NAME, &source)?;
        let mut sides = Vec::new();
        for transport in Transport::ALL {
            let store = home.join(format!("store-{transport}"));
            if transport != Transport::Tcp {
                copy(&first, &store)?;
            }
        }
        let store = home.join("store-cold");
        copy(&first, &store)?;
        for transport in Transport::ALL {
            let store = home.join(format!("store-{transport}"));
            sides.push(side(nicfetch, home, &store, transport, &[])?);
        }
        let cold = side(
            nicfetch,
            home,
            &store,
            Transport::Tcp,
            &["--blocks-hot", "0"],
        )?;
        let index = sides[0].remote.index();
        Ok(Self {
            files: chunks_of(index, b"files", CHUNK)?,
            noise: chunks_of(index, b"noise", CHUNK)?,
            small: chunks_of(index, b"small", SMALL)?,
            ranges: Connection::open(registry.address())?,
            blob,
            blob_bytes: fs::metadata(source.join("files"))
                .context("looking at the source")?
                .len(),
            _registry: registry,
            floor: Floor::lay(&fs::read(content).context("reading the files")?)?,
            sides,
            cold,
        })
    }

    /// Returns a client of the service that keeps nothing in memory.
    pub(super) const fn cold(&self) -> &Remote {
        &self.cold.remote
    }

    pub(super) fn remote(&self, transport: Transport) -> &Remote {
        let at = Transport::ALL.iter().position(|one| *one == transport);
        &self.sides[at.unwrap_or(0)].remote
    }

    pub(super) fn chunks(&self, content: Content) -> &[u32] {
        match content {
            Content::Files => &self.files,
            Content::Noise => &self.noise,
            Content::Small => &self.small,
        }
    }

    /// Reads some chunk's range from the registry.
    pub(super) fn range(&mut self, shuffle: &mut Shuffle) -> anyhow::Result<()> {
        let len = CHUNK as u64;
        let from = shuffle.below(self.blob_bytes / len) * len;
        let found = self.ranges.range(&self.blob, from, len)?;
        ensure!(found.len() == CHUNK, "the range has {} bytes", found.len());
        Ok(())
    }
}

/// Makes files that have the bytes of `content`, noise, and many small pieces of `content`.
fn make_source(content: &Path, source: &Path) -> anyhow::Result<()> {
    let small = source.join("small");
    fs::create_dir_all(&small).with_context(|| format!("making {}", small.display()))?;
    let bytes = fs::read(content)
        .with_context(|| format!("reading {} (scripts/images/root.sh)", content.display()))?;
    fs::write(source.join("files"), &bytes).context("writing the source")?;
    let mut shuffle = Shuffle::from_seed(1);
    let mut noise = std::io::BufWriter::new(
        fs::File::create(source.join("noise")).context("writing the source")?,
    );
    for _ in 0..NOISE_CHUNKS * CHUNK / 8 {
        noise.write_all(&shuffle.below(u64::MAX).to_le_bytes())?;
    }
    noise.flush().context("writing the source")?;
    // Pieces that are zeros, or the same as others, would not be asked for.
    let pieces = bytes.chunks_exact(SMALL).filter(|piece| piece[0] != 0);
    for (n, piece) in pieces.take(SMALL_FILES).enumerate() {
        let mut piece = piece.to_vec();
        piece[..8].copy_from_slice(&(n as u64 + 1).to_le_bytes());
        fs::write(small.join(format!("{n:05}")), piece).context("writing the source")?;
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    let mut copy = Command::new("cp");
    copy.args(["-a", "--reflink=auto"]).args([from, to]);
    run_ok(copy, COPY_DEADLINE)
        .map(drop)
        .context("copying a store")
}

fn side(
    nicfetch: &Nicfetch,
    home: &Path,
    store: &Path,
    transport: Transport,
    more: &[&str],
) -> anyhow::Result<Side> {
    let socket: PathBuf = home.join("blocks.sock");
    let certified = home.join("certificates");
    let (at, files) = match transport {
        Transport::Tcp => ("127.0.0.1:0".to_owned(), None),
        Transport::Unix => (format!("unix:{}", socket.display()), None),
        Transport::Tls => (
            "127.0.0.1:0".to_owned(),
            Some(certificates::make(&certified)?),
        ),
    };
    let dir = certified.display().to_string();
    let mut flags = vec!["--blocks-open"];
    flags.extend(more);
    if files.is_some() {
        flags.extend(["--blocks-tls", &dir]);
    }
    let server = nicfetch.serve_blocks(store, &at, &flags)?;
    let address: Address = server
        .address(BLOCKS)?
        .parse()
        .map_err(anyhow::Error::msg)?;
    let client = connect(address, files.as_ref().map(TlsClient::open).transpose()?)?;
    Ok(Side {
        remote: client.open(NAME.as_bytes(), None, |_| None)?,
        _client: client,
        _server: server,
    })
}

/// Connects as a mount does, but never gives up: a busy machine is not what is measured.
fn connect(address: Address, tls: Option<TlsClient>) -> anyhow::Result<Client> {
    let patience = Patience {
        give_up: super::PATIENCE,
        transfer: super::PATIENCE,
        ..Patience::default()
    };
    let config = ClientConfig {
        address,
        others: Vec::new(),
        name: NAME.as_bytes().to_vec(),
        key: None,
        tls,
        patience,
    };
    let client = Client::start(config).context("starting a client")?;
    ensure!(
        client.wait_until_connected(CONNECT),
        "no connection to nicfetch"
    );
    Ok(client)
}

/// Returns the numbers of all chunks of `len` bytes whose file is this entry of the root, or below
/// it, without those that are all zeros.
fn chunks_of(index: &Index, entry: &[u8], len: usize) -> anyhow::Result<Vec<u32>> {
    let tree = index.tree();
    let is_ours = |file| {
        let path = tree.path(file).unwrap_or_default();
        let first = path
            .split(|byte| *byte == b'/')
            .find(|name| !name.is_empty());
        first == Some(entry)
    };
    let count = u32::try_from(index.chunks().len()).context("too many chunks")?;
    let numbers = (0..count).filter(|number| {
        let place = index.place(*number);
        place.is_some_and(|place| place.len as usize == len && is_ours(place.file))
            && index.chunk(*number) != Some(chunks::index::ZEROS)
    });
    Ok(numbers.collect())
}
