//! The least that a client of HTTP/1.1 needs: one connection that stays, and answers with a length.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};

/// Longer than any answer takes.
const PATIENCE: Duration = Duration::from_secs(120);
/// No head of an answer has more lines.
const HEADERS_MAX: usize = 100;

/// A connection that is used again and again.
#[derive(Debug)]
pub struct Connection {
    stream: BufReader<TcpStream>,
}

/// The head of an answer, and what came with it.
#[derive(Debug)]
pub struct Answer {
    /// Its status.
    pub status: u16,
    /// Its headers; names in lower case.
    pub headers: HashMap<String, String>,
    /// Its body.
    pub body: Vec<u8>,
}

impl Connection {
    /// Connects.
    ///
    /// # Errors
    /// If nobody listens.
    pub fn open(to: SocketAddr) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(to).with_context(|| format!("connecting to {to}"))?;
        stream.set_nodelay(true).context("setting up a socket")?;
        stream
            .set_read_timeout(Some(PATIENCE))
            .context("setting up a socket")?;
        Ok(Self {
            stream: BufReader::new(stream),
        })
    }

    /// Sends the head of a request whose answer nobody reads.
    ///
    /// # Errors
    /// If the connection is gone.
    pub fn ask(&mut self, method: &str, path: &str, headers: &str) -> anyhow::Result<()> {
        let head = format!("{method} {path} HTTP/1.1\r\nHost: bench\r\n{headers}\r\n");
        let stream = self.stream.get_mut();
        stream
            .write_all(head.as_bytes())
            .with_context(|| format!("asking for {path}"))
    }

    /// Asks, with `headers` as they go over the wire, and reads all of the answer.
    ///
    /// # Errors
    /// If the connection fails, or the answer has no length.
    pub fn request(
        &mut self,
        method: &str,
        path: &str,
        headers: &str,
        body: &[u8],
    ) -> anyhow::Result<Answer> {
        self.ask(method, path, headers)?;
        let sent = self.stream.get_mut().write_all(body);
        sent.with_context(|| format!("sending to {path}"))?;
        self.answer(method == "HEAD")
            .with_context(|| format!("waiting for the answer to {method} {path}"))
    }

    /// Reads a range of what is at `path`.
    ///
    /// # Errors
    /// If it comes otherwise than asked.
    pub fn range(&mut self, path: &str, from: u64, len: u64) -> anyhow::Result<Vec<u8>> {
        let last = from + len - 1;
        let answer = self.request("GET", path, &format!("Range: bytes={from}-{last}\r\n"), &[])?;
        ensure!(
            answer.status == 206,
            "a range of {path} is answered with {}",
            answer.status
        );
        Ok(answer.body)
    }

    fn answer(&mut self, head_only: bool) -> anyhow::Result<Answer> {
        let status = self.line()?;
        let status = status.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = status.context("it is no answer")?;
        let mut headers = HashMap::new();
        loop {
            let line = self.line()?;
            let Some((name, value)) = line.split_once(':') else {
                break;
            };
            ensure!(headers.len() < HEADERS_MAX, "it has too many headers");
            headers.insert(name.to_lowercase(), value.trim().to_owned());
        }
        let length = headers.get("content-length");
        let length = length.map_or(Ok(0), |length| length.parse::<usize>());
        let length = length.context("its length is no number")?;
        if headers.contains_key("transfer-encoding") {
            bail!("it has no length");
        }
        let mut body = vec![0; if head_only { 0 } else { length }];
        self.stream.read_exact(&mut body).context("its body ends")?;
        Ok(Answer {
            status,
            headers,
            body,
        })
    }

    fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        let read = self.stream.read_line(&mut line)?;
        ensure!(read > 0, "the connection was closed");
        Ok(line.trim_end().to_owned())
    }
}
