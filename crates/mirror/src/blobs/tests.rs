use std::slice;

use super::lead::Verdict;
use super::*;
use hyper::body::Bytes;
use tokio::sync::mpsc;

fn digest(bytes: &[u8]) -> BlobKey {
    BlobKey::open(BlobDigest::of(Algorithm::Sha256, bytes))
}

fn cache(dir: &Path, budget: u64) -> Arc<BlobCache> {
    let config = BlobConfig {
        budget,
        hold_back: 4,
        policy: PolicyKind::Lru,
    };
    Arc::new(BlobCache::open(dir, config, &[], Box::new(|_| (0, 0))).unwrap())
}

/// Fills a blob with these bytes, whatever it is called.
async fn fill(mut lead: Lead, bytes: &[u8]) -> Result<Verdict, FillError> {
    let part = lead.open().await?;
    let part = lead.begin(part, bytes.len() as u64, None).await?;
    let rest = Bytes::copy_from_slice(&bytes[usize::try_from(part.len()).unwrap()..]);
    let (send, receive) = mpsc::channel(1);
    let writing = lead.write(part, receive);
    send.send(rest).await.unwrap();
    drop(send);
    let (part, written) = writing.await.unwrap();
    written?;
    lead.finish(part).await
}

fn lead(cache: &Arc<BlobCache>, key: &BlobKey) -> Lead {
    match cache.find(key).unwrap() {
        BlobState::Lead(lead) => lead,
        other => panic!("{other:?}"),
    }
}

fn is_whole(cache: &Arc<BlobCache>, key: &BlobKey) -> bool {
    matches!(cache.peek(key).unwrap(), Some(BlobState::Whole(_)))
}

#[tokio::test]
async fn one_fills_and_the_others_read_along() {
    let dir = tempfile::tempdir().unwrap();
    let cache = cache(dir.path(), 1 << 20);
    let name = digest(b"a layer");
    let lead = lead(&cache, &name);
    let BlobState::Growing(growing) = cache.find(&name).unwrap() else {
        panic!("a second lead");
    };
    assert_eq!(fill(lead, b"a layer").await, Ok(Verdict::Good));
    assert_eq!(growing.watch().borrow().end, Some(End::Whole));
    assert!(is_whole(&cache, &name));
    drop(cache);
    assert!(is_whole(&super::tests::cache(dir.path(), 1 << 20), &name));
}

#[tokio::test]
async fn wrong_bytes_never_become_a_blob() {
    let dir = tempfile::tempdir().unwrap();
    let cache = cache(dir.path(), 1 << 20);
    let name = digest(b"a layer of an image");
    let released = fill(lead(&cache, &name), b"A layer of an image").await;
    assert!(matches!(released, Err(FillError::Mismatch(_))));
    let short = digest(b"abc");
    let unseen = fill(lead(&cache, &short), b"abd").await;
    assert_eq!(unseen, Ok(Verdict::TryAgain));
    assert!(!is_whole(&cache, &name) && !is_whole(&cache, &short));
    assert_eq!(cache.used_bytes(), 0);
}

#[tokio::test]
async fn readers_of_a_fill_that_began_anew_see_only_the_new_bytes() {
    use std::os::unix::fs::FileExt as _;
    let dir = tempfile::tempdir().unwrap();
    let cache = cache(dir.path(), 1 << 20);
    let mut lead = lead(&cache, &digest(b"abc"));
    let growing = lead.growing();
    for (bytes, verdict) in [(b"abd", Verdict::TryAgain), (b"abc", Verdict::Good)] {
        let part = lead.open().await.unwrap();
        let mut part = lead.begin(part, 3, None).await.unwrap();
        part.append(bytes).unwrap();
        growing.advance(part.len());
        assert_eq!(lead.finish(part).await, Ok(verdict));
    }
    let mut bytes = [0; 3];
    growing
        .file()
        .unwrap()
        .read_exact_at(&mut bytes, 0)
        .unwrap();
    assert_eq!(&bytes, b"abc");
}

#[tokio::test]
async fn a_lead_that_vanishes_wakes_its_readers() {
    let dir = tempfile::tempdir().unwrap();
    let cache = cache(dir.path(), 1 << 20);
    let name = digest(b"x");
    let lead = lead(&cache, &name);
    let growing = lead.growing();
    drop(lead);
    let end = End::Failed(Arc::new(FillError::GivenUp));
    assert_eq!(growing.watch().borrow().end, Some(end));
    assert!(cache.peek(&name).unwrap().is_none());
}

#[tokio::test]
async fn the_budget_holds_and_what_is_open_stays_readable() {
    use std::os::unix::fs::FileExt as _;
    let dir = tempfile::tempdir().unwrap();
    let cache = cache(dir.path(), 20);
    let (first, second) = (b"first blob", b"second one!");
    fill(lead(&cache, &digest(first)), first).await.unwrap();
    let Some(BlobState::Whole(open)) = cache.peek(&digest(first)).unwrap() else {
        panic!("not whole");
    };
    fill(lead(&cache, &digest(second)), second).await.unwrap();
    assert!(is_whole(&cache, &digest(second)) && !is_whole(&cache, &digest(first)));
    assert_eq!((cache.used_bytes(), cache.evicted().bytes), (11, 10));
    let mut bytes = [0; 10];
    open.file.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, first);
    let long = [7; 21];
    let refused = fill(lead(&cache, &digest(&long)), &long).await;
    assert_eq!(refused, Err(FillError::NoRoom(21)));
    assert!(
        is_whole(&cache, &digest(second)),
        "nobody goes for one that cannot fit"
    );
}

#[tokio::test]
async fn what_somebody_reads_outlives_what_nobody_does() {
    let dir = tempfile::tempdir().unwrap();
    let cache = cache(dir.path(), 30);
    let blobs = [b"first blob", b"the second", b"third blob"];
    for blob in blobs {
        fill(lead(&cache, &digest(blob)), blob).await.unwrap();
    }
    let read = cache.peek(&digest(blobs[0])).unwrap();
    assert_eq!(cache.evict(20).blobs, 2);
    assert!(is_whole(&cache, &digest(blobs[0])));
    drop(read);
    fill(lead(&cache, &digest(blobs[1])), blobs[1])
        .await
        .unwrap();
    assert_eq!(cache.evict(20).blobs, 2, "nothing stays pinned");
    assert_eq!(cache.used_bytes(), 0);
}

#[tokio::test]
async fn a_blob_that_changed_its_length_is_not_served() {
    let dir = tempfile::tempdir().unwrap();
    let cache = cache(dir.path(), 1 << 20);
    let name = digest(b"a layer");
    fill(lead(&cache, &name), b"a layer").await.unwrap();
    fs::write(cache.whole_path(&name), b"").unwrap();
    assert!(!is_whole(&cache, &name));
}

/// Two readers look the blob up and find its file too short. By the time the second decides what to do, the first has
/// removed it, and it has been downloaded again.
#[tokio::test]
async fn the_second_reader_of_a_broken_file_does_not_remove_the_new_one() {
    let dir = tempfile::tempdir().unwrap();
    let cache = cache(dir.path(), 1 << 20);
    let name = digest(b"a layer");
    fill(lead(&cache, &name), b"a layer").await.unwrap();
    let path = cache.whole_path(&name);
    let broken: [fn(&Path); 2] = [
        |path| fs::write(path, b"").unwrap(),
        |path| fs::remove_file(path).unwrap(),
    ];
    for break_it in broken {
        break_it(&path);
        let second = cache.state.lock().whole[&name];
        assert!(!is_whole(&cache, &name), "the first reader");
        assert_eq!((cache.used_bytes(), cache.growing_count()), (0, 0));
        fill(lead(&cache, &name), b"a layer").await.unwrap();
        let aside = path.with_extension("aside");
        // What the second has seen.
        fs::rename(&path, &aside).unwrap();
        assert!(cache.open_stored(&name, &second).unwrap().is_none());
        fs::rename(&aside, &path).unwrap();
        assert!(is_whole(&cache, &name), "it was removed or forgotten");
        assert_eq!(fs::read(&path).unwrap(), b"a layer");
    }
}

#[tokio::test]
async fn beginnings_outlive_a_restart_and_are_collected() {
    let dir = tempfile::tempdir().unwrap();
    let name = digest(b"a layer");
    {
        let cache = cache(dir.path(), 1 << 20);
        let mut lead = lead(&cache, &name);
        let part = lead.open().await.unwrap();
        let mut part = lead.begin(part, 7, None).await.unwrap();
        part.append(b"a la").unwrap();
        lead.keep(&part);
        lead.fail(FillError::NotFound);
        assert_eq!(cache.used_bytes(), 4);
        // One that ends before it begins leaves it.
        self::lead(&cache, &name).fail(FillError::TooMany);
        assert_eq!(cache.used_bytes(), 4);
    }
    let cache = cache(dir.path(), 1 << 20);
    assert_eq!(cache.used_bytes(), 4);
    assert_eq!(
        fill(lead(&cache, &name), b"a layer").await,
        Ok(Verdict::Good)
    );
    let removed = cache.collect(Duration::ZERO);
    assert_eq!((removed.bytes, cache.used_bytes()), (7, 0));
}

#[tokio::test]
async fn what_is_anothers_is_not_found_and_counts_in_one_budget() {
    let dir = tempfile::tempdir().unwrap();
    let (mine, theirs) = (Realm::of("r.corp"), Realm::of("lies.example"));
    let open = |realms: &[Realm]| {
        let config = BlobConfig {
            budget: 20,
            hold_back: 4,
            policy: PolicyKind::Lru,
        };
        Arc::new(BlobCache::open(dir.path(), config, realms, Box::new(|_| (0, 0))).unwrap())
    };
    let key = |realm| BlobKey {
        realm,
        ..digest(b"a secret")
    };
    let cache = open(&[mine, theirs]);
    fill(lead(&cache, &key(mine)), b"a secret").await.unwrap();
    assert!(is_whole(&cache, &key(mine)));
    for other in [theirs, Realm::Open] {
        assert!(!cache.is_here(&key(other)) && cache.peek(&key(other)).unwrap().is_none());
    }
    // The same bytes once more: who brings them has them.
    fill(lead(&cache, &key(Realm::Open)), b"a secret")
        .await
        .unwrap();
    assert_eq!(cache.used_bytes(), 16);
    // Also when its registry is configured no more.
    drop(cache);
    let cache = open(&[theirs]);
    assert!(is_whole(&cache, &key(mine)) && !cache.is_here(&key(theirs)));
    assert_eq!(cache.clear(Realm::Open).blobs, 1);
    assert!(is_whole(&cache, &key(mine)) && !cache.is_here(&key(Realm::Open)));
    let long = digest(b"a long one that is open to all"[..20].as_ref());
    let bytes = b"a long one that is o";
    fill(lead(&cache, &long), bytes).await.unwrap();
    assert!(!cache.is_here(&key(mine)), "it had to go");
}

#[tokio::test]
async fn a_download_that_begins_during_an_eviction_is_not_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let cache = cache(dir.path(), 1 << 20);
    let bytes = b"a layer that is downloaded in two halves";
    let name = digest(bytes);
    for round in 0..30 {
        let mut begun = lead(&cache, &name);
        let part = begun.open().await.unwrap();
        let mut part = begun.begin(part, bytes.len() as u64, None).await.unwrap();
        part.append(&bytes[..20]).unwrap();
        begun.keep(&part);
        begun.fail(FillError::GivenUp);
        let evicting = {
            let cache = Arc::clone(&cache);
            std::thread::spawn(move || while cache.evict(1).blobs == 0 {})
        };
        let filled = loop {
            match cache.find(&name).unwrap() {
                BlobState::Lead(lead) => break fill(lead, bytes).await,
                BlobState::Growing(growing) => {
                    let mut watch = growing.watch();
                    let end = watch.wait_for(|progress| progress.end.is_some()).await;
                    end.unwrap();
                }
                BlobState::Whole(_) => panic!("nobody downloaded it"),
            }
        };
        assert_eq!(filled, Ok(Verdict::Good), "round {round}");
        // It removes the half, or the whole.
        evicting.join().unwrap();
        if let Some(BlobState::Whole(whole)) = cache.peek(&name).unwrap() {
            let found = fs::read(cache.whole_path(&name)).unwrap();
            assert_eq!((&found[..], whole.size), (&bytes[..], 40));
        }
        cache.collect(Duration::ZERO);
        assert_eq!((cache.used_bytes(), cache.growing_count()), (0, 0));
    }
}

#[tokio::test]
async fn a_blob_that_cannot_be_read_is_no_damaged_one() {
    let dir = tempfile::tempdir().unwrap();
    let cache = cache(dir.path(), 1 << 20);
    let [good, rotten, unread] =
        [&b"good"[..], b"rotten", b"unread"].map(|bytes| (digest(bytes), bytes));
    for (key, bytes) in [&good, &rotten, &unread] {
        assert_eq!(fill(lead(&cache, key), bytes).await, Ok(Verdict::Good));
    }
    fs::write(cache.whole_path(&rotten.0), b"ROTTEN").unwrap();
    // A directory opens as a file does, and then no byte of it can be read.
    let path = cache.whole_path(&unread.0);
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    let verified = cache.verify(&mut |_| std::ops::ControlFlow::Continue(()));
    assert_eq!(verified.blobs, 2);
    assert_eq!(verified.damaged, slice::from_ref(&rotten.0.digest));
    assert_eq!(verified.unread, slice::from_ref(&unread.0.digest));
    assert!(cache.is_here(&good.0) && cache.is_here(&unread.0));
    assert!(!cache.is_here(&rotten.0));
}

#[tokio::test]
async fn what_is_no_blob_is_in_the_way_of_none() {
    let put: [fn(&Path); 2] = [
        |path| fs::create_dir_all(path.join("a")).unwrap(),
        |path| nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap(),
    ];
    let name = digest(b"a layer");
    for (put, while_open) in put.iter().flat_map(|put| [(put, true), (put, false)]) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("blobs/sha256").join(name.digest.hex());
        let mut opened = cache(dir.path(), 1 << 20);
        fill(lead(&opened, &name), b"a layer").await.unwrap();
        fs::remove_file(&path).unwrap();
        put(&path);
        if !while_open {
            drop(opened);
            opened = cache(dir.path(), 1 << 20);
        }
        let (tell, told) = std::sync::mpsc::channel();
        let (looking, key) = (Arc::clone(&opened), name.clone());
        std::thread::spawn(move || tell.send(lead(&looking, &key)).unwrap());
        let lead = told.recv_timeout(Duration::from_secs(30));
        let lead = lead.expect("it waits for the pipe");
        assert_eq!(fill(lead, b"a layer").await, Ok(Verdict::Good));
        assert!(is_whole(&opened, &name));
        drop(opened);
        assert!(is_whole(&cache(dir.path(), 1 << 20), &name));
    }
}
