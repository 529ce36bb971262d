//! READ requests: each wanted chunk becomes a job of the readers, or is refused as busy.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::super::readers::{Want, status};
use super::{Connection, Refusal};
use crate::service::link::Form;
use crate::wire::versions::FORM_SINCE;
use crate::wire::{Priority, ReadForm, Status};

/// The most READs of a connection that have not been answered.
const READS_MAX: usize = 1024;

impl Connection<'_> {
    /// Reads chunks for a READ; wants beyond the limits get the status *busy*.
    pub(super) fn read(
        &mut self,
        request: u64,
        handle: u32,
        priority: Priority,
        form: ReadForm,
        deadline_ms: u32,
        chunks: &[u32],
    ) -> Result<(), Refusal> {
        if form != ReadForm::Any {
            self.needs(FORM_SINCE)?;
        }
        let index = self.source(handle)?;
        let full = self.is_full(priority);
        let cancelled = Arc::new(AtomicBool::new(false));
        let within = Duration::from_millis(u64::from(deadline_ms));
        let asked = Instant::now();
        let deadline = (deadline_ms > 0).then(|| asked + within);
        let mut wants = Vec::with_capacity(chunks.len());
        for (place, number) in (0_u16..).zip(chunks) {
            let (Some(id), Some(at)) = (index.chunk(*number), index.place(*number)) else {
                return Err(Refusal::rule("there is no such chunk in the index"));
            };
            let window = self.shared.limits.window_bytes;
            let credit = match full {
                true => None,
                false => self.vm.credit(at.len, window),
            };
            let Some(credit) = credit else {
                self.put_off(request, place, priority);
                continue;
            };
            let want = Want {
                request,
                place,
                id,
                priority,
                asked,
                machine: Arc::clone(&self.tally),
                deadline,
                cancelled: Arc::clone(&cancelled),
                credit: Some(credit),
                form: match form {
                    ReadForm::Any => self.to.form(),
                    ReadForm::Stored => Form::Stored,
                },
                to: Arc::clone(&self.to),
            };
            wants.push((u64::from(at.len), want));
        }
        self.reads.insert(request, cancelled);
        self.shared.readers.push(priority, &self.vm, wants);
        Ok(())
    }

    /// Returns whether nothing more of this priority is taken on now.
    fn is_full(&mut self, priority: Priority) -> bool {
        if self.reads.len() >= READS_MAX {
            // Nobody but us holds the mark of a READ whose answers are all on their way.
            self.reads.retain(|_, read| Arc::strong_count(read) > 1);
        }
        let shed = priority == Priority::Prefetch && !self.shared.limits.load.may_prepare();
        shed || self.reads.len() >= READS_MAX
    }

    fn put_off(&self, request: u64, place: u16, priority: Priority) {
        self.shared.counts.refused.fetch_add(1, Relaxed);
        self.shared.counts.chunks.count(priority, Status::Busy);
        self.to.send(status(request, place, Status::Busy), None);
    }
}
