//! A server of ranges of one blob that treats each request as a test says.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{JoinHandle, spawn};
use std::time::Duration;

/// Longer than any test takes.
const DEADLINE: Duration = Duration::from_secs(60);

/// What is done with a request.
#[derive(Clone, Debug)]
pub enum Treatment {
    /// It is answered.
    Right,
    /// With these bytes changed: each `X` becomes a `Y`.
    Lie,
    /// With another range, and a header that says so.
    OtherRange,
    /// With the whole blob.
    Whole,
    /// With the whole blob, of which only so many bytes come before the server is dropped.
    Hold(usize),
    /// After so many bytes of the body the connection ends.
    Cut(usize),
    /// Nothing is answered before the server is dropped.
    Stall,
    /// This status, and these headers, and no body.
    Status(u16, Vec<(&'static str, String)>),
}

/// A request.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Counted from 0.
    pub number: usize,
    /// Whether only the head of the response is wanted.
    pub is_head: bool,
    /// The path, with the query.
    pub path: String,
    /// The requested bytes.
    pub range: Range<u64>,
    /// The header `Authorization`.
    pub authorization: Option<String>,
}

type Treat = dyn Fn(&Asked) -> Treatment + Send + Sync;

/// A server, until it is dropped.
pub struct RangeServer {
    /// Where it listens.
    pub address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

struct Shared {
    blob: Vec<u8>,
    treat: Box<Treat>,
    asked: Mutex<Vec<Asked>>,
    over: AtomicBool,
    ended: Condvar,
}

impl std::fmt::Debug for RangeServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RangeServer")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl RangeServer {
    /// Starts one on 127.0.0.1.
    pub fn start(
        blob: Vec<u8>,
        treat: impl Fn(&Asked) -> Treatment + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            blob,
            treat: Box::new(treat),
            asked: Mutex::default(),
            over: AtomicBool::new(false),
            ended: Condvar::new(),
        });
        let serving = Arc::clone(&shared);
        let acceptor = spawn(move || {
            for client in listener.incoming().flatten() {
                if serving.over.load(SeqCst) {
                    break;
                }
                let serving = Arc::clone(&serving);
                spawn(move || serving.serve(&client));
            }
        });
        Self {
            address,
            shared,
            acceptor: Some(acceptor),
        }
    }

    /// Returns the URL of a path.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Returns what was asked until now.
    pub fn asked(&self) -> Vec<Asked> {
        self.shared.asked.lock().unwrap().clone()
    }
}

impl Drop for RangeServer {
    fn drop(&mut self) {
        {
            // Under the lock: nobody begins to wait in between.
            let _asked = self.shared.asked.lock().unwrap();
            self.shared.over.store(true, SeqCst);
        }
        self.shared.ended.notify_all();
        let _woken = TcpStream::connect(self.address);
        if let Some(acceptor) = self.acceptor.take() {
            let _joined = acceptor.join();
        }
    }
}

impl Shared {
    /// Answers the requests of one connection until it ends. A client that goes away is no fault.
    fn serve(&self, client: &TcpStream) {
        client.set_read_timeout(Some(DEADLINE)).unwrap();
        client.set_nodelay(true).unwrap();
        let mut reader = BufReader::new(client);
        while let Some(asked) = self.read(&mut reader) {
            let treatment = (self.treat)(&asked);
            if self.answer(client, &asked, &treatment).is_none() {
                return;
            }
        }
    }

    fn read(&self, reader: &mut BufReader<&TcpStream>) -> Option<Asked> {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let is_head = line.starts_with("HEAD ");
        let path = line.split_whitespace().nth(1)?.to_owned();
        let mut range = 0..self.blob.len() as u64;
        let mut authorization = None;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok()?;
            let Some((name, value)) = line.trim_end().split_once(':') else {
                break;
            };
            let value = value.trim();
            if name.eq_ignore_ascii_case("range") {
                let (first, last) = value.strip_prefix("bytes=")?.split_once('-')?;
                range = first.parse().ok()?..last.parse::<u64>().ok()? + 1;
            } else if name.eq_ignore_ascii_case("authorization") {
                authorization = Some(value.to_owned());
            }
        }
        let mut all = self.asked.lock().unwrap();
        let asked = Asked {
            number: all.len(),
            is_head,
            path,
            range,
            authorization,
        };
        all.push(asked.clone());
        Some(asked)
    }

    /// Waits until the server is dropped.
    fn hold(&self) -> Option<()> {
        let mut all = self.asked.lock().unwrap();
        while !self.over.load(SeqCst) {
            all = self.ended.wait_timeout(all, DEADLINE).unwrap().0;
        }
        None
    }

    /// Answers; `None` if the connection is to end.
    fn answer(&self, mut client: &TcpStream, asked: &Asked, treatment: &Treatment) -> Option<()> {
        let size = self.blob.len();
        let at = |byte: u64| usize::try_from(byte).map_or(size, |byte| byte.min(size));
        let mut body = self.blob[at(asked.range.start)..at(asked.range.end)].to_vec();
        let (mut status, mut start, mut keep) = (206, asked.range.start, body.len());
        let mut more = Vec::new();
        match treatment {
            Treatment::Right => {}
            Treatment::Lie => {
                let wrong = body.iter_mut().filter(|byte| **byte == b'X');
                wrong.for_each(|byte| *byte = b'Y');
            }
            Treatment::OtherRange => start += 1,
            Treatment::Whole | Treatment::Hold(_) => {
                (status, start) = (200, 0);
                body.clone_from(&self.blob);
                keep = body.len();
            }
            Treatment::Cut(bytes) => keep = *bytes,
            Treatment::Stall => return self.hold(),
            Treatment::Status(other, headers) => {
                status = *other;
                more.clone_from(headers);
                body.clear();
                keep = 0;
            }
        }
        let mut head = format!("HTTP/1.1 {status} x\r\nContent-Length: {}\r\n", body.len());
        if status == 206 {
            let last = start + body.len() as u64 - 1;
            head += &format!("Content-Range: bytes {start}-{last}/{size}\r\n");
        }
        for (name, value) in more {
            head += &format!("{name}: {value}\r\n");
        }
        head += "\r\n";
        client.write_all(head.as_bytes()).ok()?;
        if asked.is_head {
            return Some(());
        }
        if let Treatment::Hold(bytes) = treatment {
            client.write_all(&body[..*bytes]).ok()?;
            return self.hold();
        }
        client.write_all(&body[..keep.min(body.len())]).ok()?;
        (keep >= body.len()).then_some(())
    }
}
