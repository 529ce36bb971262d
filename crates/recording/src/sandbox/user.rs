//! Users and groups by name, from a root's own `/etc/passwd` and `/etc/group` (passwd(5),
//! group(5)).

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, bail};

/// The most that is read of either file.
const FILE_MAX: u64 = 4 << 20;

/// Who somebody is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ids {
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// All groups that the user is in.
    pub groups: Vec<u32>,
}

/// Finds who `USER[:GROUP]` is in a root. Numbers need not be in the files.
///
/// # Errors
/// If a name is in none of them.
pub fn resolve(root: &Path, text: &str) -> anyhow::Result<Ids> {
    let users = read(root, "etc/passwd");
    let groups = read(root, "etc/group");
    find(&users, &groups, text).with_context(|| format!("looking for the user {text:?}"))
}

/// A root without the file has no user names.
fn read(root: &Path, name: &str) -> String {
    let mut text = Vec::new();
    if let Ok(file) = File::open(root.join(name)) {
        let _read = file.take(FILE_MAX).read_to_end(&mut text);
    }
    String::from_utf8_lossy(&text).into_owned()
}

fn find(users: &str, groups: &str, text: &str) -> anyhow::Result<Ids> {
    let (user, group) = text
        .split_once(':')
        .map_or((text, None), |(user, group)| (user, Some(group)));
    let number: Option<u32> = user.parse().ok();
    let mut entry = None;
    for line in users.lines() {
        let fields: Vec<&str> = line.split(':').collect();
        if let [name, _, uid, gid, ..] = fields.as_slice()
            && let (Ok(uid), Ok(gid)) = (uid.parse::<u32>(), gid.parse::<u32>())
            && (*name == user || number == Some(uid))
        {
            entry = Some(((*name).to_owned(), uid, gid));
            break;
        }
    }
    let (name, uid, own) = match (entry, number) {
        (Some(entry), _) => entry,
        (None, Some(uid)) => (String::new(), uid, 0),
        (None, None) => bail!("/etc/passwd has no user {user}"),
    };
    let listed = |line: &str| {
        let fields: Vec<&str> = line.split(':').collect();
        let [group, _, gid, members] = fields.as_slice() else {
            return None;
        };
        // A user without a name is in no list, and not in the empty ones either.
        let is_member = !name.is_empty() && members.split(',').any(|member| member == name);
        Some(((*group).to_owned(), gid.parse::<u32>().ok()?, is_member))
    };
    let listed: Vec<_> = groups.lines().filter_map(listed).collect();
    let Some(group) = group.filter(|group| !group.is_empty()) else {
        let members = listed.iter().filter(|(_, _, member)| *member);
        let mut groups = vec![own];
        groups.extend(members.map(|(_, gid, _)| *gid).filter(|gid| *gid != own));
        let gid = own;
        return Ok(Ids { uid, gid, groups });
    };
    let known = listed.iter().find(|(name, _, _)| name == group);
    let gid = known
        .map(|(_, gid, _)| *gid)
        .or_else(|| group.parse().ok())
        .with_context(|| format!("/etc/group has no group {group}"))?;
    let groups = vec![gid];
    Ok(Ids { uid, gid, groups })
}

#[cfg(test)]
mod tests {
    use super::*;

    const USERS: &str = "root:x:0:0::/:/bin/sh\nbroken\nwww:x:33:34::/srv:/bin/false\n";
    const GROUPS: &str = "root:x:0:\nweb:x:34:\nlogs:x:4:adm,www\nwheel:x:10:wwwx\n";

    fn ids(text: &str) -> Option<(u32, u32, Vec<u32>)> {
        let ids = find(USERS, GROUPS, text).ok()?;
        Some((ids.uid, ids.gid, ids.groups))
    }

    #[test]
    fn names_and_numbers() {
        assert_eq!(ids("www"), Some((33, 34, vec![34, 4])));
        assert_eq!(ids("33"), Some((33, 34, vec![34, 4])));
        assert_eq!(ids("www:logs"), Some((33, 4, vec![4])));
        assert_eq!(ids("www:"), Some((33, 34, vec![34, 4])));
        assert_eq!(ids("1000:1001"), Some((1000, 1001, vec![1001])));
        assert_eq!(ids("1000"), Some((1000, 0, vec![0])));
        assert_eq!(ids("nobody"), None);
        assert_eq!(ids("www:nobody"), None);
    }
}
