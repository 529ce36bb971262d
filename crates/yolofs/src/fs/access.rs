//! Whose eyes a new version of a file is for.
//!
//! Where names and attributes are fixed, the kernel goes by the mode, the owner and the access list
//! that a file had when it was scanned, and so did whoever has it open or mapped. Nobody hears of
//! opening a file in lower mode, and a page that the kernel has is for everybody who has the file
//! open. So content of another version is given out only if nobody may do less with that version
//! than with the one that is shown: then its attributes are shown from then on. Else it is
//! [refused](FileSystem::divert), for as long as that is so.

use blocks::{
    ACCESS_LIST, AllAttrs, FileId, FileKey, Lifetime, NodeKind, SourceError, SourceErrorKind,
    Version,
};

use super::{FileSystem, FsError};

/// Names and values of extended attributes, sorted by name.
type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

impl FileSystem {
    /// Notes that a file is in another version by now.
    ///
    /// # Errors
    /// If somebody who could read the version that is shown may not read that one; if it is no
    /// regular file any more, or cannot be asked for its attributes.
    pub(super) fn divert(&self, asked: &FileKey, now: Version) -> Result<(), FsError> {
        let file = asked.file;
        if self.names.lifetime() != Lifetime::Forever {
            // The names are asked again before each read, and give out no attributes of old. Whoever
            // pushes pages of the old version must have heard of this one before it is forgotten again.
            self.watched.heard(file, now);
            self.diversions.divert(file, asked.version, now)?;
            return Ok(());
        }
        let is = match &self.attrs {
            Some(attrs) => attrs.all_attrs(file)?,
            None => return Err(refusal(file, now)),
        };
        if !self.is_for_the_same(file, &is)? {
            self.diversions.refuse(file);
            return Err(refusal(file, is.attr.version()));
        }
        let named = self.names.attr(file)?.version();
        self.diversions
            .divert_fixed(file, named, asked.version, is.attr)?;
        Ok(())
    }

    /// Says whether a file that is passed through to the source may be opened by the rights that are
    /// shown: nobody hears of what is read of it then.
    ///
    /// # Errors
    /// If somebody may do less with the file as it is now.
    pub(crate) fn admit(&self, file: FileId) -> Result<(), FsError> {
        let shown = self.current_attr(file)?;
        let Some(attrs) = &self.attrs else {
            return Ok(());
        };
        let is = attrs.all_attrs(file)?;
        let now = is.attr.version();
        if now == shown.version() || self.is_for_the_same(file, &is)? {
            return Ok(());
        }
        self.diversions.refuse(file);
        Err(refusal(file, now))
    }

    /// Has the kernel forget the attributes of a file that names no longer answer for, because
    /// somebody may do less with it: it asks for its name again then, instead of opening it once more.
    pub(super) fn forget_revoked(&self, file: FileId, error: &FsError) {
        if let FsError::Source(error) = error
            && let SourceErrorKind::Stale { now } = error.kind()
        {
            // If it cannot be written down, which is logged, the kernel goes on asking for what it has.
            let _not_noted = self.diversions.divert(file, now, now);
        }
    }

    /// Returns whether everybody who may use the version of a file that is shown may do with
    /// another version what they may do with that one.
    fn is_for_the_same(&self, file: FileId, is: &AllAttrs) -> Result<bool, FsError> {
        let shown = self.current_attr(file)?;
        let same = shown.kind == NodeKind::File
            && is.attr.give_all_rights_of(&shown)
            && self.shown_xattrs(file)? == is.xattrs;
        Ok(same && self.is_reached_by_the_same(file)?)
    }

    /// Returns whether everybody who gets to a file by the directories that are shown gets to it
    /// by those that are there.
    fn is_reached_by_the_same(&self, file: FileId) -> Result<bool, FsError> {
        let Some((attrs, path)) = self.attrs.as_ref().zip(self.names.path(file)) else {
            return Ok(false);
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
                return Ok(false);
            }
            if names.peek().is_some() {
                let next = self.names.lookup(dir, name)?;
                let Some(next) = next else { return Ok(false) };
                dir = next;
            }
        }
        Ok(true)
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

fn refusal(file: FileId, now: Version) -> FsError {
    let kind = SourceErrorKind::Stale { now };
    let doing = "reading what others may read than before";
    SourceError::new(kind, doing).about(file).into()
}
