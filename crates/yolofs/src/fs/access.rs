//! Decides whether a new version of a file may be served to the users of the old one.
//!
//! Where names and attributes are fixed, the kernel checks permissions by the mode, the owner and the access
//! list that a file had when it was scanned, and so it did for processes that have it open or mapped. In
//! `lower` mode no request reports an open, and a cached page is readable by all that have the file
//! open. So content of another version is served only if no user has fewer rights on that version
//! than on the one that is shown: then its attributes are shown from then on. Else it is
//! [refused](FileSystem::divert), as long as that is so.
//!
//! A file with several names is one file to the kernel, and stays the same file as long as one of the
//! names leads there, whatever replaces the others: users who opened it by one of those must be able to
//! reach it by one that is left. When no name leads there any more, all have to lead to one other
//! file.

use blocks::{
    ACCESS_LIST, AllAttrs, AttrSource, FileId, FileKey, Lifetime, NodeKind, SourceError,
    SourceErrorKind, Version,
};

use super::{FileSystem, FsError};

/// Names and values of extended attributes, sorted by name.
type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// What a file is by now.
struct Found {
    is: AllAttrs,
    /// The paths that lead there, one at least.
    paths: Vec<Vec<u8>>,
    /// Whether these are all that are shown.
    all_names: bool,
}

/// Who gets to a file by one of its paths.
struct Reachability {
    /// All users who reach the file through the directories that are shown.
    reached_by_the_same: bool,
    /// All users.
    open_to_all: bool,
}

impl FileSystem {
    /// Records that a file has another version now.
    ///
    /// # Errors
    /// If a user who may read the shown version may not read that one; if it is no regular file any
    /// more, or its attributes cannot be read.
    pub(super) fn divert(&self, asked: &FileKey, now: Version) -> Result<(), FsError> {
        let file = asked.file;
        if self.names.lifetime() != Lifetime::Forever {
            // The names are asked again before each read, and give out no attributes of old. Whoever
            // pushes pages of the old version must have heard of this one before it is forgotten again.
            self.watched.heard(file, now);
            self.diversions.divert(file, asked.version, now)?;
            return Ok(());
        }
        let found = match &self.attrs {
            Some(attrs) => self.now_at_its_names(&**attrs, file)?,
            None => return Err(refusal(file, now)),
        };
        let is = &found.is;
        if !self.is_for_the_same(file, &found)? {
            self.diversions.refuse(file);
            return Err(refusal(file, is.attr.version()));
        }
        let named = self.names.attr(file)?.version();
        self.diversions
            .divert_fixed(file, named, asked.version, is.attr)?;
        Ok(())
    }

    /// Begins to look at a file again that has changed before, unless somebody does.
    pub(crate) fn begin_look(&self, file: FileId) -> bool {
        self.names.lifetime() == Lifetime::Forever && self.diversions.begin_look(file)
    }

    /// Looks whether a file that has changed before has changed again, which may wait for the source. Nothing else finds
    /// out that a file became longer again after it was cut: the kernel answers reads behind the end that it knows.
    pub(crate) fn look_again(&self, file: FileId) {
        if let Ok(FileKey { file, version }) = self.key(file)
            && self.diversions.has(file)
            && let Err(error) = self.divert(&FileKey { file, version }, version)
        {
            log::debug!("file {} is shown as it was: {error}", file.0);
        }
        self.end_look(file);
    }

    /// Notes that nobody looks at a file any more, or waits for that.
    pub(crate) fn end_look(&self, file: FileId) {
        self.diversions.end_look(file);
    }

    /// Checks whether a file that is passed through to the source may be opened by the rights that are
    /// shown: its reads send no requests then.
    ///
    /// # Errors
    /// If a user has fewer rights on the file as it is now.
    pub(crate) fn admit(&self, file: FileId) -> Result<(), FsError> {
        let shown = self.current_attr(file)?;
        let Some(attrs) = &self.attrs else {
            return Ok(());
        };
        let found = self.now_at_its_names(&**attrs, file)?;
        let now = found.is.attr.version();
        if now == shown.version() || self.is_for_the_same(file, &found)? {
            return Ok(());
        }
        self.diversions.refuse(file);
        Err(refusal(file, now))
    }

    /// Makes the kernel drop the attributes of a file whose names are not valid for it any more, because
    /// a user has fewer rights on it: the kernel then looks the name up again, instead of opening the file.
    pub(super) fn forget_revoked(&self, file: FileId, error: &FsError) {
        if let FsError::Source(error) = error
            && let SourceErrorKind::Stale { now } = error.kind()
        {
            // If it cannot be written down, which is logged, the kernel goes on asking for what it has.
            let _not_noted = self.diversions.divert(file, now, now);
        }
    }

    /// Finds out what a file is by now, by all of its names.
    ///
    /// # Errors
    /// If no name leads to it, if they lead to several files none of which is the one that is shown, or
    /// if it cannot be asked.
    fn now_at_its_names(&self, attrs: &dyn AttrSource, file: FileId) -> Result<Found, FsError> {
        let shown = self.current_attr(file)?;
        let paths = self.names.paths(file);
        let paths = paths.ok_or_else(|| refusal(file, shown.version()))?;
        let names = paths.len();
        let mut found = Vec::new();
        for path in paths {
            match attrs.all_attrs_at(file, &path) {
                Ok(is) => found.push((path, is)),
                Err(error) if error.kind() == SourceErrorKind::NotFound && names > 1 => {}
                Err(error) => return Err(error.into()),
            }
        }
        let is_shown = |is: &AllAttrs| is.attr.source_inode == shown.source_inode;
        if names > 1 && found.iter().any(|(_, is)| is_shown(is)) {
            found.retain(|(_, is)| is_shown(is));
        }
        let Some((_, is)) = found.first().cloned() else {
            return Err(gone(file).into());
        };
        let all_names = found.len() == names;
        let version = is.attr.version();
        let one_file = found.iter().all(|(_, is)| is.attr.version() == version);
        if !one_file || !(all_names || is_shown(&is)) {
            self.diversions.refuse(file);
            return Err(refusal(file, is.attr.version()));
        }
        Ok(Found {
            is,
            all_names,
            paths: found.into_iter().map(|(path, _)| path).collect(),
        })
    }

    /// Returns whether everybody who may use the version of a file that is shown may do with
    /// another version what they may do with that one.
    fn is_for_the_same(&self, file: FileId, found: &Found) -> Result<bool, FsError> {
        let (shown, is) = (self.current_attr(file)?, &found.is);
        let same = shown.kind == NodeKind::File
            && is.attr.give_all_rights_of(&shown)
            && self.shown_xattrs(file)? == is.xattrs;
        if !same {
            return Ok(false);
        }
        let mut open_to_all = false;
        for path in &found.paths {
            let way = self.way(path)?;
            if !way.reached_by_the_same {
                return Ok(false);
            }
            open_to_all |= way.open_to_all;
        }
        Ok(found.all_names || open_to_all)
    }

    /// Returns who gets to a file by one of its paths.
    fn way(&self, path: &[u8]) -> Result<Reachability, FsError> {
        let mut way = Reachability {
            reached_by_the_same: false,
            open_to_all: true,
        };
        let Some(attrs) = &self.attrs else {
            return Ok(way);
        };
        let mut dir = FileId::ROOT;
        let mut names = path.split(|byte| *byte == b'/').peekable();
        while let Some(name) = names.next() {
            let (shown, is) = (self.names.attr(dir)?, attrs.all_attrs(dir)?);
            let list = is.xattrs.iter().find(|(name, _)| name == ACCESS_LIST);
            let list = list.map(|(_, list)| list);
            if !is.attr.let_pass_all_of(&shown)
                || self.names.xattr(dir, ACCESS_LIST)?.as_ref() != list
            {
                return Ok(way);
            }
            way.open_to_all &= list.is_none() && is.attr.lets_everybody_pass();
            if names.peek().is_some() {
                let next = self.names.lookup(dir, name)?;
                let Some(next) = next else { return Ok(way) };
                dir = next;
            }
        }
        way.reached_by_the_same = true;
        Ok(way)
    }

    /// Returns the extended attributes that are shown of a file, sorted by name.
    fn shown_xattrs(&self, file: FileId) -> Result<Xattrs, FsError> {
        let names = self.names.xattr_names(file)?;
        let mut all = Vec::new();
        for name in names.split(|byte| *byte == 0).filter(|n| !n.is_empty()) {
            if let Some(value) = self.names.xattr(file, name)? {
                all.push((name.to_vec(), value));
            }
        }
        all.sort_unstable();
        Ok(all)
    }
}

fn gone(file: FileId) -> SourceError {
    SourceError::new(SourceErrorKind::NotFound, "finding all names").about(file)
}

fn refusal(file: FileId, now: Version) -> FsError {
    let kind = SourceErrorKind::Stale { now };
    let doing = "reading what others may read than before";
    SourceError::new(kind, doing).about(file).into()
}
