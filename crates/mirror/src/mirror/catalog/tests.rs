use super::super::proof::Principal;
use super::*;
use crate::blobs::{Algorithm, Realm};

fn scope(repository: &str) -> Scope {
    Scope {
        registry: "docker.io".to_owned(),
        repository: repository.to_owned(),
    }
}

#[test]
fn survives_a_restart_and_keeps_repositories_apart() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("catalog");
    let layer = BlobDigest::of(Algorithm::Sha256, b"layer");
    let text = format!(r#"{{"layers":[{{"digest":"{layer}","size":5}}]}}"#);
    let digest = BlobDigest::of(Algorithm::Sha256, text.as_bytes());
    let manifest = Manifest {
        media_type: "application/x".to_owned(),
        bytes: Bytes::from(text),
    };
    let tagged = Tagged {
        digest: digest.clone(),
        media_type: manifest.media_type.clone(),
        size: manifest.bytes.len() as u64,
        checked: 7,
    };
    {
        let catalog = open(&path, 1 << 30);
        catalog.put_manifest(&key(&digest), &manifest);
        catalog.put_tag(&scope("a"), "v1", &tagged);
        catalog.put_proof(&proof("a", &digest));
    }
    let catalog = open(&path, 1 << 30);
    assert_eq!(catalog.tag(&scope("a"), "v1"), Some(tagged));
    assert_eq!(
        catalog.manifest(&Proved::forged(key(&digest))),
        Some(manifest)
    );
    assert_eq!(catalog.worth(&layer).0, 1);
    let age = |repository, digest| catalog.proof_age(&proof(repository, digest));
    assert!(age("a", &digest).is_some_and(|age| age < Duration::from_secs(3600)));
    // A manifest proves nothing of what it names, and nothing to other repositories.
    assert_eq!((age("a", &layer), age("b", &digest)), (None, None));
    assert_eq!(catalog.tag(&scope("b"), "v1"), None);
    // The same in another realm is another one.
    let apart = BlobKey {
        realm: Realm::of("r.corp"),
        digest: digest.clone(),
    };
    assert!(catalog.has(&key(&digest)) && !catalog.has(&apart));
    assert_eq!(catalog.manifest(&Proved::forged(apart)), None);
    catalog.forget_proof(&proof("a", &digest));
    assert_eq!(catalog.proof_age(&proof("a", &digest)), None);
    catalog.forget_tag(&scope("a"), "v1");
    assert_eq!(catalog.tag(&scope("a"), "v1"), None);
}

fn key(digest: &BlobDigest) -> BlobKey {
    BlobKey::open(digest.clone())
}

fn proof(repository: &str, digest: &BlobDigest) -> ProofKey {
    ProofKey::new(Principal::Mirror, &scope(repository), Some(digest))
}

fn open(path: &Path, budget: u64) -> Catalog {
    Catalog::open(path, budget, Documents::default())
}

/// A manifest of so many bytes that names so many layers, all its own.
fn manifest(seed: u32, bytes: usize, layers: usize) -> (BlobDigest, Manifest) {
    let layer = |number: usize| {
        let digest = BlobDigest::of(Algorithm::Sha256, format!("{seed} {number}").as_bytes());
        format!(r#"{{"digest":"{digest}"}}"#)
    };
    let layers: Vec<_> = (0..layers).map(layer).collect();
    let text = format!(r#"{{"seed":{seed},"layers":[{}]}}"#, layers.join(","));
    let padding = " ".repeat(bytes.saturating_sub(text.len()));
    let bytes = text + &padding;
    let manifest = Manifest {
        media_type: "application/x".to_owned(),
        bytes: Bytes::from(bytes),
    };
    (BlobDigest::of(Algorithm::Sha256, &manifest.bytes), manifest)
}

fn counts(catalog: &Catalog) -> [u64; 3] {
    let read = catalog.database().unwrap().begin_read().unwrap();
    [
        read.open_table(MANIFESTS).unwrap().len().unwrap(),
        read.open_table(TAGS).unwrap().len().unwrap(),
        read.open_table(PROOFS).unwrap().len().unwrap(),
    ]
}

fn pull(catalog: &Catalog, repository: &str, tag: &str, (digest, of): &(BlobDigest, Manifest)) {
    let tagged = Tagged {
        digest: digest.clone(),
        media_type: of.media_type.clone(),
        size: of.bytes.len() as u64,
        checked: now_millis(),
    };
    catalog.put_manifest(&key(digest), of);
    catalog.put_tag(&scope(repository), tag, &tagged);
    catalog.put_proof(&proof(repository, digest));
}

#[test]
fn manifests_of_all_lengths_fit_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("catalog");
    let catalog = open(&path, 1 << 30);
    let small = manifest(0, 0, 9);
    pull(&catalog, "small", "v1", &small);
    for seed in 1..60 {
        let bytes = 4 << (10 + seed % 11);
        let layers = usize::try_from(seed).unwrap() * 17;
        let one = manifest(seed, bytes, layers);
        pull(&catalog, &format!("a{seed}"), "v1", &one);
        let (len, most) = catalog.size();
        assert!(len <= most && most == 64 << 20, "{len} of {most}");
    }
    let found = catalog.manifest(&Proved::forged(key(&small.0)));
    assert_eq!(found, Some(small.1), "long ones do not drive it out");
    drop(catalog);
    let found = open(&path, 1 << 30).manifest(&Proved::forged(key(&small.0)));
    assert!(found.is_some(), "nor do they after a restart");
}

#[test]
fn tags_and_proofs_of_a_small_manifest_have_bounds() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("catalog");
    let catalog = open(&path, 1 << 20);
    let bounds = catalog.bounds;
    assert_eq!(bounds.file, 8 << 20);
    let one = manifest(0, 0, 1000);
    pull(&catalog, "r", "v1", &one);
    let tagged = catalog.tag(&scope("r"), "v1").unwrap();
    for number in 0..bounds.tags + 10 {
        catalog.put_tag(&scope("r"), &format!("t{number}"), &tagged);
    }
    let [_, tags, _] = counts(&catalog);
    assert!(tags <= bounds.tags && tags > bounds.tags / 2, "{tags}");
    let last = format!("t{}", bounds.tags + 9);
    assert_eq!(catalog.tag(&scope("r"), &last), Some(tagged));
    // What was said last stays, whatever it is called.
    for number in 0..bounds.proofs / 500 {
        let proofs = (0..1000).map(|other| proof(&format!("{number}/{other}"), &one.0));
        catalog.put_proofs(&proofs.collect::<Vec<_>>());
        let [manifests, _, proofs] = counts(&catalog);
        assert!(manifests == 1 && proofs <= bounds.proofs, "{proofs}");
        let last = proof(&format!("{number}/999"), &one.0);
        assert!(catalog.proof_age(&last).is_some());
    }
    assert_eq!(catalog.proof_age(&proof("0/0", &one.0)), None);
    assert!(catalog.manifest(&Proved::forged(key(&one.0))).is_some());
}

#[test]
fn what_is_not_what_it_is_called_is_not_served() {
    let dir = tempfile::tempdir().unwrap();
    let catalog = open(&dir.path().join("catalog"), 1 << 30);
    let (one, other) = (manifest(1, 0, 1), manifest(2, 0, 1));
    catalog.put_manifest(&key(&one.0), &other.1);
    assert_eq!(catalog.manifest(&Proved::forged(key(&one.0))), None);
    assert_eq!(catalog.document(&key(&one.0)), None);
    catalog.put_manifest(&key(&other.0), &other.1);
    assert_eq!(catalog.document(&key(&other.0)), Some(other.1.bytes));
}

#[test]
fn what_was_said_in_the_future_is_not_believed() {
    let dir = tempfile::tempdir().unwrap();
    let catalog = open(&dir.path().join("catalog"), 1 << 30);
    let proof = proof("a", &manifest(1, 0, 1).0);
    let said_at = |time: u64| {
        catalog.write("a proof", |write| {
            write.open_table(PROOFS)?.insert(&proof.0, time)?;
            Ok(())
        });
    };
    said_at(now_millis() + 3_600_000);
    assert_eq!(catalog.proof_age(&proof), None);
    said_at(now_millis() - 3_600_000);
    assert!(catalog.proof_age(&proof) >= Some(Duration::from_secs(3600)));
}

#[test]
fn what_names_too_much_or_is_too_long_is_not_kept() {
    let dir = tempfile::tempdir().unwrap();
    let catalog = open(&dir.path().join("catalog"), 1 << 30);
    let before = counts(&catalog);
    for one in [manifest(1, 0, 1025), manifest(2, 4 << 20, 1)] {
        catalog.put_manifest(&key(&one.0), &one.1);
    }
    let mut odd = manifest(3, 0, 1);
    odd.1.media_type = "x".repeat(256);
    pull(&catalog, "a", "v1", &odd);
    // What its registry said is kept, as of any other.
    assert_eq!(counts(&catalog), [before[0], before[1], before[2] + 1]);
    assert_eq!(catalog.manifest_count(), 0);
}

/// Fills a catalog with some images, and returns what it has to say of them.
fn some_images(catalog: &Catalog) -> Vec<(String, (BlobDigest, Manifest))> {
    let images = (0..30).map(|seed| (format!("r{seed}"), manifest(seed, 500, 3)));
    let images: Vec<_> = images.collect();
    for (repository, image) in &images {
        pull(catalog, repository, "v1", image);
    }
    images
}

/// Returns whether a catalog knows an image; what it says of it is right.
fn knows(
    catalog: &Catalog,
    (repository, (digest, image)): &(String, (BlobDigest, Manifest)),
) -> bool {
    let found = catalog.manifest(&Proved::forged(key(digest)));
    let tagged = catalog.tag(&scope(repository), "v1");
    assert!(found.as_ref().is_none_or(|found| found == image));
    assert!(
        tagged
            .as_ref()
            .is_none_or(|tagged| tagged.digest == *digest)
    );
    found.is_some() && tagged.is_some()
}

#[test]
fn what_is_no_catalog_is_set_aside_and_a_new_one_begun() {
    let in_its_place: [&dyn Fn(&Path); 4] = [
        &|path| fs::write(path, [7; 100_000]).unwrap(),
        &|path| fs::write(path, "no catalog").unwrap(),
        &|path| fs::create_dir_all(path.join("a")).unwrap(),
        &|path| nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap(),
    ];
    for (number, put) in in_its_place.iter().enumerate() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("catalog");
        put(&path);
        let catalog = open(&path, 1 << 30);
        let images = some_images(&catalog);
        assert!(
            images.iter().all(|image| knows(&catalog, image)),
            "{number}"
        );
        drop(catalog);
        let catalog = open(&path, 1 << 30);
        assert!(
            images.iter().all(|image| knows(&catalog, image)),
            "{number}"
        );
        assert!(path.with_extension("damaged").exists(), "{number}");
    }
}

#[test]
fn a_damaged_page_costs_what_it_has_and_no_correctness() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("catalog");
    let catalog = open(&path, 1 << 30);
    let images = some_images(&catalog);
    drop(catalog);
    let whole = fs::read(&path).unwrap();
    let mut lost = 0;
    for page in 0..whole.len() / 4096 {
        let mut bytes = whole.clone();
        let page = &mut bytes[page * 4096..][..4096];
        page.iter_mut().step_by(97).for_each(|byte| *byte ^= 0x55);
        fs::write(&path, bytes).unwrap();
        let catalog = open(&path, 1 << 30);
        lost += usize::from(!images.iter().all(|image| knows(&catalog, image)));
        // What comes now is kept, whatever was lost.
        let new = ("new".to_owned(), manifest(99, 500, 3));
        pull(&catalog, "new", "v1", &new.1);
        assert!(knows(&catalog, &new));
    }
    assert!(lost > 0, "no page mattered");
}

/// As a release wrote it that had no bounds.
#[test]
fn a_catalog_of_an_earlier_release_is_read_and_made_small() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("catalog");
    let old = include_bytes!("../../../tests/fixtures/catalog-v1.redb.zst");
    fs::write(&path, zstd::decode_all(&old[..]).unwrap()).unwrap();
    let digest = "sha256:6abcb92fc8a95c18994f465558340d55b584f9501f3ae248e9ff3af0a2880397";
    let digest: BlobDigest = digest.parse().unwrap();
    let library = |name: &str| scope(&format!("library/{name}"));
    let layer = BlobDigest::of(Algorithm::Sha256, b"layer");
    let is_whole = |catalog: &Catalog| {
        let tagged = catalog.tag(&library("deb"), "v1").unwrap();
        assert_eq!((tagged.digest, tagged.size), (digest.clone(), 397));
        assert!(catalog.manifest(&Proved::forged(key(&digest))).is_some());
        assert_eq!(catalog.worth(&layer).0, 1);
    };
    let catalog = open(&path, 1 << 20);
    is_whole(&catalog);
    // What releases without bounds took in.
    for seed in 0..5 {
        let one = manifest(seed, 4 << 20, 1);
        catalog.write("a manifest", |write| {
            let value = (one.1.media_type.as_str(), &one.1.bytes[..]);
            let mut manifests = write.open_table(MANIFESTS)?;
            manifests.insert(one.0.to_string().as_str(), value)?;
            Ok(())
        });
    }
    drop(catalog);
    let catalog = open(&path, 1 << 20);
    // What it linked was not said by any registry.
    assert_eq!(counts(&catalog), [1, 2, 0]);
    assert!(catalog.size().0 < 2 << 20, "{:?}", catalog.size());
    is_whole(&catalog);
}

/// Has a process of its own keep what a thousand tenants with a thousand repositories each pull, and
/// returns by how much its memory grew.
#[test]
fn a_thousand_tenants_with_a_thousand_repositories_fit_into_64_mib() {
    const CHILD: &str = "NICFETCH_TEST_OF_TENANTS";
    if std::env::var_os(CHILD).is_some() {
        return thousand_tenants();
    }
    let name =
        "mirror::catalog::tests::a_thousand_tenants_with_a_thousand_repositories_fit_into_64_mib";
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    println!("{said}");
    assert!(
        child.status.success(),
        "{}",
        String::from_utf8_lossy(&child.stderr)
    );
    let grew = said.lines().find_map(|line| line.strip_prefix("grew by "));
    let grew: u64 = grew.unwrap().parse().unwrap();
    assert!(grew <= 64 << 20, "{grew} bytes");
}

fn thousand_tenants() {
    use super::super::proof::ClientProofs;
    use crate::upstream::{Asker, Login};
    const TENANTS_AT_ONCE: usize = 10;
    let memory = || {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let peak = peak.unwrap().trim().trim_end_matches(" kB");
        peak.parse::<u64>().unwrap() << 10
    };
    // In memory, so that nobody waits for a disk a million times.
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let before = memory();
    let catalog = open(&dir.path().join("catalog"), 1 << 40);
    let said = ClientProofs::default();
    assert_eq!(catalog.bounds.file, 128 << 20, "the largest there is");
    // Some tenants at a time: with each record that is one too many, all are looked through for the oldest.
    let tenants: Vec<_> = (0..1000_u32).collect();
    for some in tenants.chunks(TENANTS_AT_ONCE) {
        let mut own = Vec::new();
        let mut tags = Vec::new();
        for tenant in some {
            let login = Login {
                username: format!("tenant {tenant}"),
                password: "secret".to_owned(),
            };
            let principal = Principal::of(&Asker::Client(Some(login)));
            for number in 0..1000_u32 {
                let scope = scope(&format!("tenant-{tenant}/repository-{number}"));
                let digest = BlobDigest::of(Algorithm::Sha256, format!("{scope}").as_bytes());
                own.push(ProofKey::new(Principal::Mirror, &scope, Some(&digest)));
                said.note(ProofKey::new(principal, &scope, None));
                said.note(ProofKey::new(principal, &scope, Some(&digest)));
                let checked = u64::from(tenant * 1000 + number);
                tags.push((format!("{scope}:latest"), digest.to_string(), checked));
            }
        }
        catalog.put_proofs(&own);
        catalog.write("the tags of some tenants", |write| {
            let mut table = write.open_table(TAGS)?;
            for (name, digest, checked) in &tags {
                table.insert(
                    name.as_str(),
                    (digest.as_str(), "application/x", 7, *checked),
                )?;
            }
            Ok(())
        });
        // As many as there is room for, with many layers and with few.
        for number in some.iter().flat_map(|tenant| tenant * 4..tenant * 4 + 4) {
            let layers = if number % 4 == 0 { 1000 } else { 20 };
            let one = manifest(number, 2000, layers);
            catalog.put_manifest(&key(&one.0), &one.1);
        }
    }
    let [manifests, tags, proofs] = counts(&catalog);
    println!(
        "{manifests} manifests, {tags} tags, {proofs} proofs, {} bytes",
        catalog.size().0
    );
    assert!(manifests > 100 && tags > 10_000 && proofs > 100_000);
    println!("grew by {}", memory() - before);
}

/// What the fuzz target does, with what the compiler of every day can make.
#[cfg(feature = "testing")]
mod hostile {
    use proptest::prelude::*;

    use super::super::super::hostile::{Records, read_records};

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn records_of_strangers_are_read_or_left(
            tags in prop::collection::vec((".{0,40}", ".{0,80}", ".{0,300}", any::<u64>(), any::<u64>()), 0..20),
            manifests in prop::collection::vec((".{0,80}", ".{0,300}", any::<Vec<u8>>()), 0..20),
            proofs in prop::collection::vec((any::<[u8; 32]>(), any::<u64>()), 0..20),
            links in prop::collection::vec(".{0,80}", 0..20),
        ) {
            let dir = tempfile::tempdir_in("/dev/shm").unwrap();
            let records = Records { tags, manifests, proofs, links };
            prop_assert_eq!(read_records(dir.path(), &records), Ok(()));
        }
    }
}
