//! What a start needs, compared with what this machine's own programs have mapped, and found in
//! images that are made up.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::PathBuf;
use std::process::Command;

use proptest::prelude::*;
use tiering::hif::{HotFile, ImageFiles, Layers, Need, Node, Start, start_files};

fn find(files: &dyn ImageFiles, command: &[&str], env: &[&str]) -> Vec<HotFile> {
    let owned = |words: &[&str]| {
        words
            .iter()
            .map(|&word| word.to_owned())
            .collect::<Vec<_>>()
    };
    let start = Start {
        command: &owned(command),
        env: &owned(env),
        working_dir: "/srv",
    };
    start_files(files, &start)
}

fn paths(found: &[HotFile]) -> BTreeSet<&str> {
    found.iter().map(|file| file.path.as_str()).collect()
}

/// This machine, as an image of one layer.
fn host() -> Layers {
    Layers::new(&[PathBuf::from("/")])
}

/// The files that a process has mapped which runs `command`, a program that prints its own maps.
fn mapped(command: &[&str]) -> BTreeSet<String> {
    let output = Command::new(command[0])
        .args(&command[1..])
        .env_clear()
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let paths = text
        .lines()
        .filter_map(|line| line.find('/').map(|at| line[at..].to_owned()));
    let mapped: BTreeSet<String> = paths.filter(|path| !path.contains("locale")).collect();
    assert!(!mapped.is_empty(), "it prints its maps: {text}");
    mapped
}

#[test]
fn all_that_the_loader_maps_for_a_program_of_this_machine_is_found() {
    for program in ["/bin/cat", "/usr/bin/grep"] {
        let maps = if program.ends_with("grep") {
            vec![program, ""]
        } else {
            vec![program]
        };
        let mapped = mapped(&[maps, vec!["/proc/self/maps"]].concat());
        let found = find(&host(), &[program], &[]);
        let missing: Vec<&String> = mapped
            .iter()
            .filter(|path| !paths(&found).contains(path.as_str()))
            .collect();
        assert!(missing.is_empty(), "of {program}: {missing:?}");
        // And not much else.
        assert!(found.len() < 40, "{found:?}");
    }
}

/// An image in a directory.
struct Image {
    dir: tempfile::TempDir,
    layers: usize,
}

impl Image {
    fn new(layers: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        (0..layers).for_each(|layer| fs::create_dir(dir.path().join(layer.to_string())).unwrap());
        Self { dir, layers }
    }

    fn at(&self, layer: usize, path: &str) -> PathBuf {
        let at = self.dir.path().join(layer.to_string()).join(path);
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        at
    }

    fn file(&self, layer: usize, path: &str, content: &[u8]) {
        let at = self.at(layer, path);
        fs::write(&at, content).unwrap();
        fs::set_permissions(at, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn link(&self, layer: usize, path: &str, target: &str) {
        symlink(target, self.at(layer, path)).unwrap();
    }

    fn layers(&self) -> Layers {
        let layer = |layer: usize| self.dir.path().join(layer.to_string());
        Layers::new(&(0..self.layers).map(layer).collect::<Vec<_>>())
    }
}

#[test]
fn a_command_is_followed_through_scripts_links_and_layers() {
    let image = Image::new(3);
    image.file(0, "usr/bin/sh", b"a shell, if it were one");
    image.link(0, "bin", "usr/bin");
    image.file(0, "usr/bin/server-1.2", b"a server");
    image.link(0, "usr/bin/server", "../../etc/alternatives/server");
    image.link(0, "etc/alternatives/server", "/usr/bin/server-1.2");
    image.file(1, "etc/server/server.conf", b"port = 1");
    image.file(
        1,
        "entry.sh",
        b"#!/bin/sh\n# tool-in-a-comment\nif x; then chore; fi\nexec \"$@\"\n",
    );
    image.file(2, "usr/local/bin/chore", b"#!/usr/bin/env runner\nmore\n");
    image.file(2, "usr/bin/env", b"env");
    image.file(2, "opt/bin/runner", b"runner");
    image.file(2, "srv/data.txt", b"data");
    image.file(2, "usr/bin/other", b"nobody names it");
    let layers = image.layers();
    let found = find(
        &layers,
        &["/entry.sh", "server", "--verbose", "data.txt"],
        &["PATH=/usr/local/bin:/usr/bin:/opt/bin"],
    );
    let want = [
        "/entry.sh",
        "/usr/bin/sh",
        "/usr/local/bin/chore",
        "/usr/bin/env",
        "/opt/bin/runner",
        "/usr/bin/server-1.2",
        "/srv/data.txt",
        "/etc/server/server.conf",
    ];
    assert_eq!(paths(&found), BTreeSet::from(want), "{found:?}");
    let need = |path: &str| found.iter().find(|file| file.path == path).unwrap().need;
    assert_eq!(need("/usr/bin/sh"), Need::Interpreter);
    assert_eq!(need("/usr/bin/server-1.2"), Need::Program);
    assert_eq!(need("/etc/server/server.conf"), Need::Configuration);
    assert_eq!(layers.layer_of("/usr/bin/sh"), Some(0));
    assert_eq!(layers.layer_of("/opt/bin/runner"), Some(2));
    assert_eq!(layers.layer_of("/nothing"), None);
    // The same through a shell's line.
    let found = find(&layers, &["/bin/sh", "-c", "exec server 'data.txt'"], &[]);
    assert!(paths(&found).is_superset(&BTreeSet::from(["/usr/bin/sh", "/usr/bin/server-1.2"])));
}

#[test]
fn an_interpreter_brings_the_modules_that_it_begins_with() {
    let image = Image::new(1);
    // Any program will do for one that is loaded: what it is called decides.
    let program = fs::read("/bin/cat").unwrap();
    image.file(0, "usr/local/bin/python3.11", &program);
    image.link(0, "usr/local/bin/python3", "python3.11");
    for module in ["os.py", "encodings/utf_8.py", "json/decoder.py"] {
        image.file(0, &format!("usr/local/lib/python3.11/{module}"), b"pass");
    }
    image.file(
        0,
        "usr/local/lib/python3.11/__pycache__/os.cpython-311.pyc",
        b"compiled",
    );
    let found = find(&image.layers(), &["python3", "-m", "app"], &[]);
    let found = paths(&found);
    assert!(found.contains("/usr/local/lib/python3.11/os.py"));
    assert!(found.contains("/usr/local/lib/python3.11/__pycache__/os.cpython-311.pyc"));
    assert!(found.contains("/usr/local/lib/python3.11/encodings/utf_8.py"));
    assert!(
        !found.contains("/usr/local/lib/python3.11/json/decoder.py"),
        "not by everybody"
    );
}

#[test]
fn links_in_circles_and_ways_out_of_the_image_lead_nowhere() {
    let image = Image::new(1);
    image.link(0, "usr/bin/a", "b");
    image.link(0, "usr/bin/b", "a");
    image.link(0, "usr/bin/out", "../../../../../../../../bin/cat");
    image.file(0, "loop.sh", b"#!/loop.sh\n/loop.sh\n");
    let found = find(
        &image.layers(),
        &["/loop.sh", "a", "out", "/../../bin/cat"],
        &[],
    );
    assert_eq!(paths(&found), BTreeSet::from(["/loop.sh"]));
    assert!(find(&image.layers(), &[], &[]).is_empty());
}

#[test]
fn a_file_that_a_higher_layer_replaced_by_a_file_is_a_directory_no_more() {
    let image = Image::new(2);
    image.file(0, "opt/tool/run", b"old");
    image.file(0, "opt/kept", b"kept");
    image.file(1, "opt/tool", b"now a file");
    let layers = image.layers();
    assert_eq!(layers.node("/opt/tool/run"), None);
    assert_eq!(layers.node("/opt/tool"), Some(Node::File { len: 10 }));
    assert_eq!(layers.names("/opt"), ["kept", "tool"]);
    assert_eq!(layers.node("/opt/kept"), Some(Node::File { len: 4 }));
}

/// An image whose one program is these bytes.
#[derive(Debug)]
struct OneProgram(Vec<u8>);

impl ImageFiles for OneProgram {
    fn node(&self, path: &str) -> Option<Node> {
        let len = self.0.len() as u64;
        (path == "/program").then_some(Node::File { len })
    }

    fn read_at(&self, _: &str, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let begin = usize::try_from(offset)
            .unwrap_or(usize::MAX)
            .min(self.0.len());
        let read = buf.len().min(self.0.len() - begin);
        buf[..read].copy_from_slice(&self.0[begin..begin + read]);
        Ok(read)
    }

    fn names(&self, _: &str) -> Vec<String> {
        Vec::new()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_program_is_too_broken(
        changes in prop::collection::vec((0usize..6000, any::<u8>()), 0..12),
        cut in prop_oneof![3 => Just(usize::MAX), 1 => 0usize..6000],
    ) {
        let mut program = fs::read("/bin/cat").unwrap();
        for (at, byte) in changes {
            // Mostly in the headers, where it hurts.
            let at = if at % 2 == 0 { at % 1024 } else { at };
            if let Some(place) = program.get_mut(at) {
                *place = byte;
            }
        }
        program.truncate(cut);
        let found = find(&OneProgram(program), &["/program"], &[]);
        prop_assert_eq!(found.len(), 1);
    }
}
