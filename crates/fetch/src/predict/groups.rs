//! Counts predictions by place, and how many were used.

use std::collections::{HashMap, HashSet, VecDeque};

use super::Gain;

/// Round trips' worth of bytes that are predicted of a group whatever comes of it.
const TRIAL: u64 = 4;
/// The largest window of a group, in round trips' worth of bytes.
const WINDOW_MAX: u64 = 8;
/// The most files and directories that are remembered.
const REMEMBERED: usize = 4096;

/// The place or the reason of a prediction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Group {
    Run,
    Whole,
    Linked,
    /// The large file that begins with this chunk.
    File(u32),
    Directory(u32),
    /// Files in the directories below this one.
    Branch(u32),
    All,
}

/// What is known of a group.
#[derive(Clone, Copy, Debug, Default)]
struct Success {
    /// How much is predicted at the next miss.
    window: u64,
    /// Bytes that were predicted.
    made: u64,
    /// Predicted chunks that were read.
    used: u64,
}

/// All groups, and predictions that were not used yet.
#[derive(Debug, Default)]
pub(super) struct Groups {
    groups: HashMap<Group, Success>,
    /// The oldest first, each with its bytes.
    unused: VecDeque<(u32, u64)>,
    waiting: HashSet<u32>,
    unused_bytes: u64,
}

impl Groups {
    /// Returns the window of a group at a miss, and doubles it for the next. The first is a part of what a
    /// round trip is worth.
    pub(super) fn grow(&mut self, group: Group, gain: Gain, part: u64) -> u64 {
        let success = self.of(group);
        success.window = match success.window {
            0 => gain.round_trip_bytes / part,
            window => window.saturating_mul(2),
        };
        let most = gain.round_trip_bytes.saturating_mul(WINDOW_MAX);
        success.window = success.window.min(most);
        success.window
    }

    /// Returns the window of a group at its last miss.
    pub(super) fn window(&self, group: Group) -> u64 {
        self.groups.get(&group).map_or(0, |success| success.window)
    }

    /// Returns whether more of a group is worth predicting: each use saved a round trip, and so many bytes could
    /// come meanwhile.
    pub(super) fn is_worth(&self, group: Group, gain: Gain) -> bool {
        let success = self.groups.get(&group).copied().unwrap_or_default();
        // What is read next may still use the latest of them: these are the trial. What a program is linked
        // with comes all at once, before any of it can be used.
        let trial = match group {
            Group::Linked | Group::Whole | Group::Run => TRIAL * 8,
            Group::File(_) | Group::Directory(_) | Group::Branch(_) | Group::All => TRIAL,
        };
        let earned = gain
            .round_trip_bytes
            .saturating_mul(success.used.saturating_add(trial));
        success.made < earned
    }

    /// Records a prediction. The oldest unused ones are dropped for it.
    pub(super) fn made(&mut self, group: Group, chunk: u32, bytes: u64, gain: Gain) {
        self.of(group).made += bytes;
        self.unused.push_back((chunk, bytes));
        self.waiting.insert(chunk);
        self.unused_bytes += bytes;
        while self.unused_bytes > gain.unused_bytes
            && let Some((oldest, bytes)) = self.unused.pop_front()
        {
            if self.waiting.remove(&oldest) {
                self.unused_bytes -= bytes;
            }
        }
    }

    /// Records that a predicted chunk was read.
    pub(super) fn used(&mut self, group: Group, chunk: u32, bytes: u64) {
        self.of(group).used += 1;
        if self.waiting.remove(&chunk) {
            self.unused_bytes -= bytes;
        }
    }

    fn of(&mut self, group: Group) -> &mut Success {
        if self.groups.len() >= REMEMBERED && !self.groups.contains_key(&group) {
            self.groups.clear();
        }
        self.groups.entry(group).or_default()
    }
}
