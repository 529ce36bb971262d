//! A client of NBD that sends what it is told to, also what a good client would not.

#![expect(clippy::big_endian_bytes, reason = "NBD is big-endian")]

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use blockexport::Exporter;
use blockexport::nbd::{NbdConfig, NbdExporter};
use blocks::Space;

use crate::conformance::{Client, Refused, Rig};

pub(crate) struct NbdRig {
    pub dir: tempfile::TempDir,
    pub config: NbdConfig,
}

impl NbdRig {
    pub(crate) fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
            config: NbdConfig::default(),
        }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("nbd.sock")
    }
}

impl Rig for NbdRig {
    fn exporter(&self) -> Box<dyn Exporter> {
        Box::new(NbdExporter {
            socket: self.socket(),
            config: self.config.clone(),
        })
    }

    fn connect(&self) -> Box<dyn Client> {
        Box::new(NbdClient::go(&self.socket()))
    }

    fn shared(&self) -> bool {
        true
    }
}

pub(crate) struct NbdClient {
    pub stream: UnixStream,
    pub size: u64,
    pub flags: u16,
    cookie: u64,
}

/// What came back: an error number, or data.
type Reply = Result<Vec<u8>, u32>;

impl NbdClient {
    /// Connects up to the client's flags.
    pub(crate) fn greet(socket: &Path) -> Self {
        let mut stream = UnixStream::connect(socket).unwrap();
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).unwrap();
        assert_eq!(&greeting, b"NBDMAGICIHAVEOPT\0\x03");
        stream.write_all(&3_u32.to_be_bytes()).unwrap();
        Self {
            stream,
            size: 0,
            flags: 0,
            cookie: 0,
        }
    }

    /// Connects with structured replies and block status.
    pub(crate) fn go(socket: &Path) -> Self {
        let mut client = Self::greet(socket);
        assert_eq!(client.option(8, &[]).unwrap(), [(1, vec![])]);
        let query = "base:allocation";
        let lengths = [0, 1, query.len() as u32].map(u32::to_be_bytes);
        let set = [lengths.as_flattened(), query.as_bytes()].concat();
        let contexts = client.option(10, &set).unwrap();
        assert_eq!(contexts.len(), 2, "one context, and the end");
        for (kind, data) in client.option(7, &[0; 6]).unwrap() {
            if kind == 3 && data[..2] == [0, 0] {
                client.size = u64::from_be_bytes(data[2..10].try_into().unwrap());
                client.flags = u16::from_be_bytes(data[10..12].try_into().unwrap());
            }
        }
        client
    }

    /// Sends an option and returns the kinds and data of all replies to it.
    pub(crate) fn option(&mut self, option: u32, data: &[u8]) -> io::Result<Vec<(u32, Vec<u8>)>> {
        let head = [option, data.len() as u32].map(u32::to_be_bytes);
        self.stream
            .write_all(&[b"IHAVEOPT", head.as_flattened(), data].concat())?;
        let mut replies = Vec::new();
        loop {
            let mut head = [0; 20];
            self.stream.read_exact(&mut head)?;
            assert_eq!(head[..8], 0x0003_e889_0455_65a9_u64.to_be_bytes());
            let number = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
            assert_eq!(number(8), option);
            let mut data = vec![0; number(16) as usize];
            self.stream.read_exact(&mut data)?;
            let kind = number(12);
            replies.push((kind, data));
            if kind == 1 || kind >= 0x8000_0000 {
                return Ok(replies);
            }
        }
    }

    pub(crate) fn send(&mut self, command: u16, flags: u16, range: Range<u64>, data: &[u8]) -> u64 {
        self.cookie += 1;
        let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
        bytes.extend([flags, command].map(u16::to_be_bytes).as_flattened());
        bytes.extend(
            [self.cookie, range.start]
                .map(u64::to_be_bytes)
                .as_flattened(),
        );
        bytes.extend(((range.end - range.start) as u32).to_be_bytes());
        bytes.extend(data);
        self.stream.write_all(&bytes).unwrap();
        self.cookie
    }

    /// Receives one reply of either kind, with its cookie.
    pub(crate) fn receive(&mut self) -> io::Result<(u64, Reply)> {
        let mut magic = [0; 4];
        self.stream.read_exact(&mut magic)?;
        if magic == 0x6744_6698_u32.to_be_bytes() {
            let mut rest = [0; 12];
            self.stream.read_exact(&mut rest)?;
            let error = u32::from_be_bytes(rest[..4].try_into().unwrap());
            let cookie = u64::from_be_bytes(rest[4..].try_into().unwrap());
            let result = if error == 0 { Ok(vec![]) } else { Err(error) };
            return Ok((cookie, result));
        }
        assert_eq!(magic, 0x668e_33ef_u32.to_be_bytes());
        let mut rest = [0; 16];
        self.stream.read_exact(&mut rest)?;
        assert_eq!(rest[..2], [0, 1], "one chunk is all");
        let kind = u16::from_be_bytes(rest[2..4].try_into().unwrap());
        let cookie = u64::from_be_bytes(rest[4..12].try_into().unwrap());
        let len = u32::from_be_bytes(rest[12..].try_into().unwrap());
        let mut data = vec![0; len as usize];
        self.stream.read_exact(&mut data)?;
        Ok(match kind {
            1 => (cookie, Ok(data.split_off(8))),
            5 => (cookie, Ok(data.split_off(4))),
            _ => (
                cookie,
                Err(u32::from_be_bytes(data[..4].try_into().unwrap())),
            ),
        })
    }

    /// Sends a request and returns its reply.
    pub(crate) fn ask(
        &mut self,
        command: u16,
        flags: u16,
        range: Range<u64>,
        data: &[u8],
    ) -> Reply {
        let cookie = self.send(command, flags, range, data);
        let (answered, reply) = self.receive().unwrap();
        assert_eq!(answered, cookie);
        reply
    }

    fn done(&mut self, command: u16, flags: u16, range: Range<u64>) -> Result<(), Refused> {
        self.ask(command, flags, range, &[])
            .map(drop)
            .map_err(refused)
    }
}

const fn refused(_: u32) -> Refused {
    Refused
}

impl Client for NbdClient {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&mut self, offset: u64, len: usize) -> Result<Vec<u8>, Refused> {
        let read = self.ask(0, 0, offset..offset + len as u64, &[]);
        read.map_err(refused)
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), Refused> {
        let range = offset..offset + data.len() as u64;
        self.ask(1, 0, range, data).map(drop).map_err(refused)
    }

    fn flush(&mut self) -> Result<(), Refused> {
        self.done(3, 0, 0..0)
    }

    fn trim(&mut self, range: Range<u64>) -> Result<(), Refused> {
        self.done(4, 0, range)
    }

    fn zero(&mut self, range: Range<u64>, space: Space) -> Result<(), Refused> {
        let flags = if space == Space::Keep { 2 } else { 0 };
        self.done(6, flags, range)
    }

    fn read_many(&mut self, offsets: &[u64], len: usize) -> Vec<Vec<u8>> {
        let send = |offset: &u64| self.send(0, 0, *offset..offset + len as u64, &[]);
        let cookies: Vec<u64> = offsets.iter().map(send).collect();
        let mut replies = HashMap::new();
        for _ in offsets {
            let (cookie, reply) = self.receive().unwrap();
            assert!(replies.insert(cookie, reply.unwrap()).is_none());
        }
        cookies
            .iter()
            .map(|cookie| replies.remove(cookie).unwrap())
            .collect()
    }
}
