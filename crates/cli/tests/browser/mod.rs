//! A real browser, without a window: loads a page, measures it, takes its picture.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// What measures a page: it stands in a frame of this one, untouched.
const PROBE: &str = include_str!("probe.html");
/// Seconds after which a browser has hung, however busy the machine is.
const PATIENCE: &str = "120";

/// Light or dark: what the page is told that the user prefers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheme {
    Light,
    Dark,
}

/// A browser with a profile of its own.
#[derive(Debug)]
pub(crate) struct Browser {
    dir: PathBuf,
}

impl Browser {
    /// Returns a browser that keeps its files in this directory.
    pub(crate) fn new(dir: PathBuf) -> Self {
        fs::create_dir_all(&dir).unwrap();
        Self { dir }
    }

    /// Loads a page at a width in pixels, and returns what the probe measured.
    pub(crate) fn measure(&self, page: &Path, width: u32, scheme: Scheme) -> Value {
        let probe = self.dir.join("probe.html");
        let text = PROBE.replace("PAGE", &format!("file://{}", page.display()));
        fs::write(&probe, text.replace("WIDTH", &width.to_string())).unwrap();
        let args = ["--dump-dom", "--allow-file-access-from-files"];
        let output = self.run(&args, &probe, scheme);
        let dom = String::from_utf8_lossy(&output.stdout).into_owned();
        let result = dom
            .split_once("<pre id=\"result\">")
            .and_then(|(_, rest)| rest.split_once("</pre>"));
        let (json, _) = result.unwrap_or_else(|| panic!("the probe found nothing:\n{dom}"));
        serde_json::from_str(json).unwrap_or_else(|error| panic!("{error}:\n{json}"))
    }

    /// Takes a picture of a page and returns it.
    pub(crate) fn photograph(
        &self,
        page: &Path,
        (width, height): (u32, u32),
        scheme: Scheme,
        picture: &Path,
    ) -> Picture {
        let size = format!("--window-size={width},{height}");
        let file = format!("--screenshot={}", picture.display());
        self.run(&["--hide-scrollbars", &size, &file], page, scheme);
        Picture::open(picture)
    }

    fn run(&self, args: &[&str], page: &Path, scheme: Scheme) -> Output {
        let scheme = match scheme {
            Scheme::Dark => "--blink-settings=preferredColorScheme=0",
            Scheme::Light => "--blink-settings=preferredColorScheme=1",
        };
        let profile = tempfile::Builder::new().tempdir_in(&self.dir).unwrap();
        let output = Command::new("timeout")
            .args(["--kill-after=5", PATIENCE, "chromium", "--headless=new"])
            .args(["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
            .args(["--no-first-run", "--enable-logging=stderr", scheme])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .args(args)
            .arg(format!("file://{}", page.display()))
            .output()
            .expect("chromium is not installed: scripts/test.sh installs it");
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {log}", output.status);
        let complaints = log.lines().filter(|line| line.contains(":CONSOLE"));
        let complaints: Vec<_> = complaints.collect();
        assert!(complaints.is_empty(), "the page complains: {complaints:#?}");
        output
    }
}

/// A picture's pixels.
#[derive(Debug)]
pub(crate) struct Picture {
    pixels: Vec<[u8; 3]>,
}

impl Picture {
    fn open(path: &Path) -> Self {
        let file = std::io::BufReader::new(fs::File::open(path).unwrap());
        let mut reader = png::Decoder::new(file).read_info().unwrap();
        let mut bytes = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut bytes).unwrap();
        let samples = info.color_type.samples();
        assert!(samples >= 3, "{:?}", info.color_type);
        let pixels = bytes[..info.buffer_size()].chunks_exact(samples);
        Self {
            pixels: pixels.map(|pixel| [pixel[0], pixel[1], pixel[2]]).collect(),
        }
    }

    /// Returns how many colours it has.
    pub(crate) fn colours(&self) -> usize {
        self.pixels.iter().collect::<HashSet<_>>().len()
    }

    /// Returns how bright its first pixel is, which is the page's background: 0 to 255.
    pub(crate) fn background(&self) -> u8 {
        let [red, green, blue] = self.pixels[0];
        red.max(green).max(blue)
    }
}
