//! Ranges that lazy clients read ahead of a download, from registries with faults.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use hyper::header::RANGE;
use testkit::range_server::{Asked, RangeServer, Treatment};

use super::*;

const SIZE: u64 = 4 << 20;

fn content() -> Vec<u8> {
    (0..SIZE)
        .map(|at| b'A' + u8::try_from(at / 7 % 25).unwrap())
        .collect()
}

/// A mirror before a registry whose only blob does not come to its end, and treats ranges of it in some way. The
/// number of a range, from 0, is in `number`.
struct Site {
    mirror: Arc<Mirror>,
    registry: RangeServer,
    path: String,
    _dir: tempfile::TempDir,
}

impl Site {
    fn new(
        access: Access,
        treat: impl Fn(usize, &Asked) -> Treatment + Send + Sync + 'static,
    ) -> Self {
        let ranges = AtomicUsize::new(0);
        let registry = RangeServer::start(content(), move |asked| match is_range(asked) {
            true => treat(ranges.fetch_add(1, SeqCst), asked),
            false if asked.is_head => Treatment::Whole,
            false => Treatment::Hold(1000),
        });
        let config = UpstreamConfig {
            redirect_networks: Vec::new(),
            name: "r.corp".to_owned(),
            url: registry.url(""),
            login: None,
            token_hosts: Vec::new(),
            authorities: Vec::new(),
        };
        let dir = tempfile::tempdir().unwrap();
        let upstream = Arc::new(Upstream::new(config).unwrap());
        let digest = BlobDigest::of(Algorithm::Sha256, &content());
        Self {
            mirror: mirror(dir.path(), vec![(upstream, access)]),
            registry,
            path: format!("/v2/r.corp/an/image/blobs/{digest}"),
            _dir: dir,
        }
    }

    /// Reads a range; `None` if the client is cut off.
    async fn get(&self, range: Range<u64>, login: Option<&str>) -> Option<Vec<u8>> {
        get(&self.mirror, &self.path, range, login).await
    }

    /// Returns the ranges that the registry was asked for.
    fn ranges(&self) -> Vec<Range<u64>> {
        let asked = self.registry.asked().into_iter();
        asked.filter(is_range).map(|asked| asked.range).collect()
    }
}

fn is_range(asked: &Asked) -> bool {
    asked.range.end - asked.range.start < SIZE
}

async fn get(
    mirror: &Arc<Mirror>,
    path: &str,
    range: Range<u64>,
    login: Option<&str>,
) -> Option<Vec<u8>> {
    let value = format!("bytes={}-{}", range.start, range.end - 1);
    let mut request = Request::get(path).header(RANGE, value);
    if let Some(login) = login {
        request = request.header(AUTHORIZATION, distribution::basic(login, "password"));
    }
    let request = request.body(()).unwrap();
    let (_, _, reply) = mirror.answer([127, 0, 0, 1].into(), &request).await;
    assert_eq!(reply.status().as_u16(), 206);
    let body = timeout(Duration::from_secs(60), reply.into_body().collect());
    Some(body.await.unwrap().ok()?.to_bytes().to_vec())
}

fn right(range: Range<u64>) -> Vec<u8> {
    let at = |byte| usize::try_from(byte).unwrap();
    content()[at(range.start)..at(range.end)].to_vec()
}

fn sum(ranges: &[Range<u64>]) -> u64 {
    ranges.iter().map(|range| range.end - range.start).sum()
}

const MIB: u64 = 1 << 20;

#[tokio::test(flavor = "multi_thread")]
async fn what_several_clients_read_is_fetched_once_though_their_ranges_differ() {
    let site = Site::new(Access::All, |_, _| Treatment::Right);
    let reads = (0..8).map(|nth| {
        let (mirror, path) = (Arc::clone(&site.mirror), site.path.clone());
        let range = 2 * MIB + nth * 4096..2 * MIB + nth * 4096 + 65_536;
        tokio::spawn(async move {
            let got = get(&mirror, &path, range.clone(), None).await;
            assert!(got.unwrap() == right(range));
        })
    });
    for read in reads.collect::<Vec<_>>() {
        read.await.unwrap();
    }
    assert_eq!(sum(&site.ranges()), 65_536 + 7 * 4096);
    // Later, too.
    let range = 2 * MIB + 5..2 * MIB + 70_000;
    assert!(site.get(range.clone(), None).await.unwrap() == right(range));
    assert_eq!(sum(&site.ranges()), 65_536 + 7 * 4096);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_range_request_that_stalls_is_sent_again() {
    let site = Site::new(Access::All, |number, _| match number {
        0 => Treatment::Stall,
        _ => Treatment::Right,
    });
    let range = 3 * MIB..3 * MIB + 20_000;
    let got = site.get(range.clone(), None).await;
    assert!(got.unwrap() == right(range));
    assert!(site.ranges().len() > 1);
    let stats = site.mirror.stats().upstreams[0].ranges;
    assert!(stats.requests > 1 && stats.hedged > 0, "{stats:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_came_of_a_range_that_was_cut_is_not_fetched_again() {
    let site = Site::new(Access::All, |number, _| match number {
        0 => Treatment::Cut(10_000),
        _ => Treatment::Right,
    });
    let range = 3 * MIB..3 * MIB + 20_480;
    let got = site.get(range.clone(), None).await;
    assert!(got.unwrap() == right(range));
    let stats = site.mirror.stats().upstreams[0].ranges;
    assert_eq!((stats.requests, stats.retried), (2, 3), "{stats:?}");
    let ranges = site.ranges();
    assert_eq!(ranges[1], 3 * MIB + 8192..3 * MIB + 20_480, "{ranges:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_that_is_busy_is_asked_again() {
    let site = Site::new(Access::All, |number, _| match number {
        0..3 => Treatment::Status(503, Vec::new()),
        _ => Treatment::Right,
    });
    let range = 3 * MIB..3 * MIB + 20_000;
    let got = site.get(range.clone(), None).await;
    assert!(got.unwrap() == right(range));
    assert_eq!(site.ranges().len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_range_than_was_requested_is_not_sent_to_a_client() {
    let site = Site::new(Access::All, |_, _| Treatment::OtherRange);
    assert!(site.get(3 * MIB..3 * MIB + 20_000, None).await.is_none());
    // One that knows no ranges sends all of it, of which the client gets its part.
    let site = Site::new(Access::All, |_, _| Treatment::Whole);
    let range = 3 * MIB..3 * MIB + 20_000;
    let got = site.get(range.clone(), None).await;
    assert!(got.unwrap() == right(range));
}

/// Ranges are fetched in the name of whoever asked first of a blob. If the registry refuses them later, another client
/// gets them in its own name, and the first one does not.
#[tokio::test(flavor = "multi_thread")]
async fn who_is_refused_a_range_does_not_keep_it_from_others() {
    let refuses = Arc::new(AtomicBool::new(false));
    let refusing = Arc::clone(&refuses);
    let site = Site::new(Access::Upstream, move |_, asked| {
        let alice = distribution::basic("alice", "password");
        let basic = ("WWW-Authenticate", "Basic realm=\"test\"".to_owned());
        match &asked.authorization {
            None => Treatment::Status(401, vec![basic]),
            Some(login) if *login == alice && refusing.load(SeqCst) => {
                Treatment::Status(403, Vec::new())
            }
            Some(_) => Treatment::Right,
        }
    });
    let (first, second) = (2 * MIB..2 * MIB + 4096, 3 * MIB..3 * MIB + 4096);
    let got = site.get(first.clone(), Some("alice")).await;
    assert!(got.unwrap() == right(first));
    refuses.store(true, SeqCst);
    let got = site.get(second.clone(), Some("bob")).await;
    assert!(got.unwrap() == right(second.clone()));
    assert!(site.get(second, Some("alice")).await.is_none());
}
