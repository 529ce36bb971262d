//! Registries that lie, and users of the machine who put something into a cache's directory.

#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "tests"
)]

mod cache_lab;

use std::fs::{self, Permissions};
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::ops::{ControlFlow, Range};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::sync::{Arc, Mutex};

use blockimages::convert::{ConvertOptions, convert_disk};
use blockimages::manage::{self, NewImage, Top, UpperKind};
use blockimages::{BlobCache, DeviceConfig, ImageError, OriginConfig, Registries};
use blocks::BlockDevice as _;
use lsmt::ReadAt as _;
use oci::registry::{Credentials, RegistryConfig, Transport};
use ranges::testing::MemoryPlace;

use cache_lab::{Lab, honest, memory};

/// Whoever has an image attached names its registry, and any digest: until all of a blob is there, its bytes are
/// what that registry sent.
#[test]
fn what_one_registry_sent_is_not_served_for_another() {
    let lab = Lab::new(4 * 4096);
    let cache = lab.cache();
    let size = lab.blob.len() as u64;
    let forged = Arc::new(vec![0x66; 4 * 4096]);
    let mut hostile = memory(Arc::clone(&forged), Arc::default(), honest());
    hostile.servers = vec!["https://hostile".to_owned()];
    let hostile = cache.blob(lab.digest(), size, hostile).unwrap();
    let mut read = vec![0; 4 * 4096];
    hostile.read_at(&mut read, 0).unwrap();
    assert_eq!(read, *forged);
    // While that is open, and afterwards.
    lab.check(&lab.open(&cache, honest()), 0..4096);
    drop(hostile);
    lab.check(&lab.open(&cache, honest()), 0..4 * 4096);
    // With a mirror, it is the registry's all the same.
    lab.asked();
    let mut mirrored = memory(Arc::clone(&lab.blob), Arc::clone(&lab.asked), honest());
    mirrored.servers.insert(0, "http://mirror".to_owned());
    mirrored.places.push(Arc::clone(&mirrored.places[0]));
    let mirrored = cache.blob(lab.digest(), size, mirrored).unwrap();
    lab.check(&mirrored, 0..4 * 4096);
    assert_eq!(lab.asked(), []);
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

#[test]
fn a_cache_is_for_its_owner_alone() {
    let lab = Lab::new(4096);
    let dir = lab.dir.path().join("cache");
    let chmod = |mode| fs::set_permissions(&dir, Permissions::from_mode(mode)).unwrap();
    fs::create_dir(&dir).unwrap();
    // Everybody's place is not ours, and stays as it is.
    chmod(0o1777);
    let refused = BlobCache::open(&dir, lab.config).unwrap_err();
    assert!(matches!(refused, ImageError::File { .. }), "{refused}");
    assert_eq!((mode(&dir), dir.join("lock").exists()), (0o1777, false));
    // One of an earlier release.
    chmod(0o755);
    let cache = lab.cache();
    lab.check(&lab.open(&cache, honest()), 0..4096);
    let data = lab.data();
    let (blob, map) = (data.parent().unwrap(), data.with_file_name("map"));
    assert_eq!([&*dir, blob].map(mode), [0o700, 0o700]);
    assert_eq!([&*data, &*map].map(mode), [0o600, 0o600]);
}

/// Others could make files in it before it was closed.
#[test]
fn no_link_in_a_cache_is_written_through() {
    let lab = Lab::new(4096);
    let elsewhere = lab.dir.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let victim = elsewhere.join("victim");
    drop(lab.open(&lab.cache(), honest()));
    let data = lab.data();
    let blob = data.parent().unwrap().to_owned();
    let lock = blob.with_file_name("lock");
    for name in [lock, data.clone(), data.with_file_name("map"), blob] {
        let was = name.with_extension("was");
        fs::rename(&name, &was).unwrap();
        fs::write(&victim, "root").unwrap();
        let is_dir = was.is_dir();
        let target = if is_dir { &elsewhere } else { &victim };
        symlink(target, &name).unwrap();
        let cache = BlobCache::open(&lab.dir.path().join("cache"), lab.config);
        let opened = cache.and_then(|cache| {
            let origin = memory(Arc::clone(&lab.blob), Arc::default(), honest());
            cache.blob(lab.digest(), lab.blob.len() as u64, origin)
        });
        // What can be made anew is set aside.
        let is_refused = matches!(opened, Err(ImageError::File { .. }));
        assert_eq!(is_refused, name.ends_with("lock"), "{name:?}");
        drop(opened);
        assert_eq!(fs::read(&victim).unwrap(), b"root", "{name:?}");
        assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 1, "{name:?}");
        if !is_refused {
            let mut aside = name.clone().into_os_string();
            aside.push(".unusable-0");
            assert!(fs::symlink_metadata(&aside).unwrap().is_symlink());
            fs::remove_file(&aside).unwrap();
        }
        match is_dir && !is_refused {
            true => fs::remove_dir_all(&name).unwrap(),
            false => fs::remove_file(&name).unwrap(),
        }
        fs::rename(&was, &name).unwrap();
    }
}

/// He made the directory before, with links in it.
#[test]
fn nothing_is_made_in_a_directory_that_others_may_write_to() {
    let lab = Lab::new(1);
    let at = |name: &str| lab.dir.path().join(name);
    let [disk, victim] = ["disk.raw", "victim"].map(at);
    for path in [&disk, &victim] {
        fs::write(path, [7; 4096]).unwrap();
    }
    let create = |dir: &Path| {
        let new = (Top::Pair(UpperKind::Append), Some(1 << 20));
        manage::create(
            dir,
            DeviceConfig::default(),
            NewImage::from(new.0).sized(new.1),
        )
        .map(drop)
    };
    let convert = |dir: &Path| {
        let (options, mut watch) = (ConvertOptions::default(), |_| ControlFlow::Continue(()));
        convert_disk(&disk, dir, "image", &options, &mut watch).map(drop)
    };
    let dir = at("images");
    for (others, names) in [
        (0o777, [".lock", "upper.data"]),
        (0o1777, [".lock", "upper.data"]),
    ] {
        fs::create_dir(&dir).unwrap();
        fs::set_permissions(&dir, Permissions::from_mode(others)).unwrap();
        for name in names {
            symlink(&victim, dir.join(name)).unwrap();
        }
        create(&dir).unwrap_err();
        convert(&dir).unwrap_err();
        assert_eq!(fs::read(&victim).unwrap(), [7; 4096]);
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 2);
        fs::remove_dir_all(&dir).unwrap();
    }
    create(&dir).unwrap();
    fs::remove_dir_all(&dir).unwrap();
    convert(&dir).unwrap();
}

/// It is believed like a command line: a layer in it may be any file, and be written to.
#[test]
fn a_configuration_that_another_user_can_change_is_not_used() {
    let lab = Lab::new(1);
    let dir = lab.dir.path().join("image");
    let top = (Top::Pair(UpperKind::Append), Some(1 << 20));
    manage::create(
        &dir,
        DeviceConfig::default(),
        NewImage::from(top.0).sized(top.1),
    )
    .unwrap();
    let config = dir.join("config.v1.json");
    let open = || blockimages::open_image(&dir, None).map(drop);
    open().unwrap();
    let chmod =
        |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    for (path, open_mode, mode) in [
        (&config, 0o666, 0o644),
        (&dir, 0o777, 0o755),
        (&lab.dir.path().to_owned(), 0o777, 0o755),
    ] {
        chmod(path, open_mode);
        let refused = open().unwrap_err();
        let why = std::error::Error::source(&refused).unwrap().to_string();
        assert!(why.contains(path.to_str().unwrap()), "{refused}: {why}");
        manage::commit(&dir, None, lsmt::BlobOptions::default(), b"").unwrap_err();
        manage::status(&dir).unwrap_err();
        chmod(path, mode);
        open().unwrap();
    }
    if nix::unistd::geteuid().is_root() {
        std::os::unix::fs::chown(&config, Some(65534), None).unwrap();
        open().unwrap_err();
        std::os::unix::fs::chown(&config, Some(0), None).unwrap();
        open().unwrap();
    }
}

/// Serves what `answer` says to the head of each request, and returns the address and the heads that came.
fn server(answer: impl Fn(&str) -> Vec<u8> + Send + 'static) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let heads: Arc<Mutex<Vec<String>>> = Arc::default();
    let noted = Arc::clone(&heads);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|len| len == 1) {
                head.push(byte[0]);
            }
            let head = String::from_utf8_lossy(&head).to_lowercase();
            let said = answer(&head);
            noted.lock().unwrap().push(head);
            // Who asked may be gone.
            let _sent = stream.write_all(&said);
        }
    });
    (address, heads)
}

const BASIC: &str = "WWW-Authenticate: Basic realm=\"r\"\r\n";

/// Returns an answer that asks for a login, or leads elsewhere.
fn refusal(header: &str) -> Vec<u8> {
    let status = match header.starts_with("Location") {
        true => "307 Temporary Redirect",
        false => "401 Unauthorized",
    };
    let end = "Content-Length: 0\r\nConnection: close";
    format!("HTTP/1.1 {status}\r\n{header}{end}\r\n\r\n").into_bytes()
}

/// Returns the range that is asked for, to who has a login.
fn registry_answer(blob: &[u8], head: &str) -> Vec<u8> {
    if !head.contains("authorization: basic ") {
        return refusal(BASIC);
    }
    let range = head.split("range: bytes=").nth(1).unwrap();
    let range = range.split("\r\n").next().unwrap();
    let (start, end) = range.split_once('-').unwrap();
    let (start, end): (usize, usize) = (start.parse().unwrap(), end.parse().unwrap());
    let (len, whole) = (end + 1 - start, blob.len());
    let head = format!(
        "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {start}-{end}/{whole}\r\n\
         Content-Length: {len}\r\nConnection: close\r\n\r\n"
    );
    [head.as_bytes(), &blob[start..=end]].concat()
}

/// A mirror is on the way, and knows what it is asked for; it is not to know the password of the registry.
#[test]
fn a_mirror_gets_no_login_whatever_it_answers() {
    let lab = Lab::new(3 * 4096);
    let blob = Arc::clone(&lab.blob);
    let (registry, asked) = server(move |head| registry_answer(&blob, head));
    let (thief, stolen) = server(|_| refusal(BASIC));
    for trick in [
        BASIC.to_owned(),
        format!(
            "WWW-Authenticate: Bearer realm=\"http://{thief}/token\",service=\"{registry}\"\r\n"
        ),
        format!(
            "WWW-Authenticate: Bearer realm=\"http://{registry}/token\",service=\"{registry}\"\r\n"
        ),
        format!("Location: http://{thief}/blob\r\n"),
        format!("Location: http://{registry}/v2/other/secret\r\n"),
        "Location: http://169.254.169.254/latest\r\n".to_owned(),
    ] {
        let answer = trick.clone();
        let (mirror, told) = server(move |_| refusal(&answer));
        let dir = tempfile::tempdir().unwrap();
        let cache = BlobCache::open(&dir.path().join("cache"), lab.config).unwrap();
        let config = OriginConfig {
            registry: RegistryConfig {
                transport: Transport::Plain,
                credentials: Some(Credentials {
                    username: "user".to_owned(),
                    password: "pass".to_owned(),
                }),
                ..RegistryConfig::default()
            },
            logins: None,
            mirrors: vec![format!("http://{mirror}")],
        };
        let reference = format!("{registry}/app:1").parse().unwrap();
        let origin = Registries::default()
            .origin(&reference, lab.digest(), &config)
            .unwrap();
        let blob = cache
            .blob(lab.digest(), lab.blob.len() as u64, origin)
            .unwrap();
        lab.check(&blob, 0..3 * 4096);
        let told = told.lock().unwrap();
        assert!(!told.is_empty(), "{trick}: the mirror is asked first");
        let has_login = |head: &String| head.contains("authorization");
        assert!(
            !told.iter().chain(&*stolen.lock().unwrap()).any(has_login),
            "{trick}"
        );
        // And nothing is asked with the password that the mirror chose.
        let asked = asked.lock().unwrap();
        let mut chosen = asked
            .iter()
            .filter(|head| head.contains("/secret") || head.contains("/token"));
        assert!(!chosen.any(has_login), "{trick}");
    }
}

#[test]
fn what_is_no_blob_is_never_evicted() {
    let mut lab = Lab::new(64 * 4096);
    lab.config.limit_bytes = 4 * 4096;
    let others = lab.dir.path().join("cache/app");
    fs::create_dir_all(&others).unwrap();
    fs::write(others.join("data"), vec![1; 40_960]).unwrap();
    let cache = lab.cache();
    lab.check(&lab.open(&cache, honest()), 0..64 * 4096);
    assert!(cache.counts().evicted > 0 && others.join("data").exists());
}

/// A size is what a registry says, and memory has to be there for it.
#[test]
fn a_blob_that_claims_to_be_huge_takes_memory_for_what_is_read() {
    const CLAIMED: u64 = 1 << 43;
    let resident = || {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
        kib.unwrap().parse::<u64>().unwrap()
    };
    let lab = Lab::new(4096);
    let cache = lab.cache();
    let mut origin = memory(Arc::default(), Arc::default(), honest());
    origin.places = vec![Arc::new(MemoryPlace {
        answer: Arc::new(|range: Range<u64>| Ok(vec![7; (range.end - range.start) as usize])),
        parallel: 1,
    })];
    let before = resident();
    let blob = cache.blob(lab.digest(), CLAIMED, origin).unwrap();
    for at in [0, CLAIMED / 2, CLAIMED - 1] {
        let mut byte = [0];
        blob.read_at(&mut byte, at).unwrap();
        assert_eq!(byte, [7]);
    }
    assert!(resident() - before < 128 << 10, "in KiB, of 36 GiB");
}

#[test]
fn a_device_that_claims_to_be_huge_is_walked_in_a_few_steps() {
    const CLAIMED: u64 = 1 << 58;
    let dir = tempfile::tempdir().unwrap();
    let options = ConvertOptions::default().blob();
    let new = (Top::Pair(UpperKind::Append), Some(CLAIMED));
    manage::create(
        dir.path(),
        DeviceConfig::default(),
        NewImage::from(new.0).sized(new.1),
    )
    .unwrap();
    let device = blockimages::open_image(dir.path(), None).unwrap();
    let (data, at) = ([7; 4096], CLAIMED / 2);
    device
        .write_at(at, &data, blocks::Durability::Durable)
        .unwrap();
    drop(device);
    let layers = manage::commit(dir.path(), None, options, b"").unwrap();
    let config = serde_json::json!({"lowers": [{"file": layers[0].file}]});
    let image = dir.path().join("sealed");
    fs::create_dir(&image).unwrap();
    fs::write(image.join("config.v1.json"), config.to_string()).unwrap();
    let device = blockimages::open_image(&image, None).unwrap();
    let (mut walked, mut kinds) = (0, Vec::new());
    while walked < CLAIMED && kinds.len() < 10 {
        let extent = device.extents(walked..CLAIMED, 1).unwrap()[0];
        walked += extent.len;
        kinds.push(extent.content);
    }
    let (hole, data) = (blocks::Content::Hole, blocks::Content::Data);
    assert_eq!((walked, kinds), (CLAIMED, vec![hole, data, hole]));
}
