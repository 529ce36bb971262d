//! Sandboxes that run Python: by a fork of a Zygote if there is one that may be used.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use crate::cgroup::{Group, Lent};
use crate::error::{Result, SandboxError};
use crate::launch::{Mounts, Parts};
use crate::network::Network;
use crate::packages::{Packages, check_packages};
use crate::record::new_id;
use crate::request::{Python, Request, Stdio};
use crate::sandbox::{Controls, Next, Sandbox};
use crate::sandboxes::{Newborn, Sandboxes};
use crate::starters::Starters;
use crate::stdio::{Streams, open_stdio};
use crate::zygote::{
    Child, ImportKey, IsRoot, Living, Users, Waiting, ZYGOTES_MAX, Zygote, ZygoteCounts,
    ZygoteSpec, ZygoteView, derive, launch,
};

/// What a start of Python needs once it is decided how it starts.
struct Prepared {
    request: Request,
    mounts: Mounts,
    stdio: [OwnedFd; 3],
    streams: Streams,
}

impl Sandboxes {
    /// Makes a Zygote, from which sandboxes that request its packages, and maybe others, are forked.
    ///
    /// # Errors
    /// If it cannot be started, or cannot import.
    pub fn add_zygote(&self, spec: ZygoteSpec) -> Result<ZygoteView> {
        check_packages(&spec.packages)?;
        if !spec.packages.is_empty() && spec.store.is_none() {
            return Err(SandboxError::Invalid(
                "a Zygote with packages needs the directory that has them".to_owned(),
            ));
        }
        let starters = self.starters(&spec.base)?;
        self.make_zygote(None, |users, lent, group| {
            let filter = self.confinement.filter_text();
            launch(spec, &starters, filter, users, lent, group)
        })
    }

    /// Makes a Zygote that is forked from another one.
    fn derive_zygote(&self, parent: &Arc<Zygote>, spec: ZygoteSpec) -> Result<ZygoteView> {
        self.make_zygote(Some(parent), |users, lent, group| {
            let derived = derive(parent, spec, users, lent, group, &self.shared.pool);
            derived.map_err(|failure| {
                let (error, group) = *failure;
                Box::new((error, Some(group)))
            })
        })
    }

    /// Makes a Zygote with users and groups of its own. What `make` does not keep is given back.
    fn make_zygote(
        &self,
        parent: Option<&Arc<Zygote>>,
        make: impl FnOnce(
            Arc<Users>,
            Arc<Lent>,
            Group,
        ) -> std::result::Result<Zygote, Box<(SandboxError, Option<Group>)>>,
    ) -> Result<ZygoteView> {
        let users = self.users_for(parent)?;
        let pool = &self.shared.pool;
        // Not by its users alone: children of the one before may still be in their groups.
        let lent = Lent::new(pool, &format!("z{}", new_id()?), users.first)?;
        let group = match lent.take(pool) {
            Ok(group) => group,
            Err(error) => {
                lent.close(pool);
                return Err(error);
            }
        };
        let lent = Arc::new(lent);
        let _underway = self.shared.zygotes.strays.underway();
        match make(users, Arc::clone(&lent), group) {
            Ok(zygote) => {
                let zygote = Arc::new(zygote);
                let view = zygote.view();
                self.shared.zygotes.live.lock().push(Living { zygote });
                self.shared.zygotes.made.fetch_add(1, Relaxed);
                if parent.is_some() {
                    self.shared.zygotes.derived.fetch_add(1, Relaxed);
                }
                Ok(view)
            }
            Err(failure) => {
                let (error, group) = *failure;
                if let Some(group) = group {
                    lent.put_back(group, pool);
                }
                lent.close(pool);
                Err(error)
            }
        }
    }

    /// Returns unused user IDs. That may require ending Zygotes.
    fn users_for(&self, parent: Option<&Arc<Zygote>>) -> Result<Arc<Users>> {
        let zygotes = &self.shared.zygotes;
        let is_root = match parent {
            None => IsRoot::Wanted,
            Some(_) => IsRoot::Any,
        };
        while zygotes.is_full(is_root) {
            let least = match parent {
                None => zygotes
                    .least(IsRoot::Wanted)
                    .or_else(|| zygotes.least(IsRoot::Any)),
                Some(_) => None,
            };
            let least = least.ok_or(SandboxError::Full(ZYGOTES_MAX))?;
            zygotes.evicted.fetch_add(1, Relaxed);
            self.end_zygote(&least);
        }
        let users = zygotes.take_users(parent.map(Arc::as_ref), || self.shared.users());
        users.ok_or_else(|| {
            SandboxError::Invalid(
                "there are no users for another Zygote: sandboxes of former ones still have them"
                    .to_owned(),
            )
        })
    }

    /// Notes which modules a program of Python has imported: the next Zygote of its packages imports those that all
    /// programs of these packages have. The names may come from the program: they are checked, and at most
    /// [`IMPORTS_MAX`](crate::IMPORTS_MAX) are kept.
    pub fn note_imports(&self, sandbox: &Sandbox, modules: Vec<String>) {
        let request = sandbox.request();
        if let Some(python) = &request.python {
            let key = import_key(request, python, &python.packages);
            self.shared.zygotes.imports.lock().note(key, modules);
        }
    }

    /// Returns the cache data of each Zygote, to choose which is evicted first.
    pub fn kept_zygotes(&self) -> Vec<crate::cache::Kept> {
        self.shared.zygotes.kept()
    }

    /// Returns all Zygotes.
    pub fn zygotes(&self) -> Vec<ZygoteView> {
        let live = self.shared.zygotes.live.lock().clone();
        live.iter().map(|living| living.zygote.view()).collect()
    }

    /// Returns what a Zygote was to be; `None` if there is none of this id.
    pub fn zygote_spec(&self, id: &str) -> Option<ZygoteSpec> {
        let live = self.shared.zygotes.live.lock();
        let living = live.iter().find(|living| living.zygote.id == id)?;
        Some(living.zygote.spec.clone())
    }

    /// Returns how many Zygotes there are that were to be this.
    pub fn count_zygotes(&self, spec: &ZygoteSpec) -> usize {
        let live = self.shared.zygotes.live.lock();
        let alike = live.iter().filter(|living| living.zygote.spec == *spec);
        alike.count()
    }

    /// Returns how starts of Python began.
    pub fn zygote_counts(&self) -> ZygoteCounts {
        self.shared.zygotes.counts()
    }

    /// Ends a Zygote. Sandboxes that were forked from it keep running.
    ///
    /// # Errors
    /// If there is none of this id.
    pub fn evict(&self, id: &str) -> Result<()> {
        match self.end_zygote(id) {
            true => Ok(()),
            false => Err(SandboxError::Unknown {
                kind: "Zygote",
                name: id.to_owned(),
            }),
        }
    }

    /// Ends the least valuable Zygote without descendants. Returns its id.
    pub fn evict_least(&self) -> Option<String> {
        let least = self.shared.zygotes.least(IsRoot::Any)?;
        self.shared.zygotes.evicted.fetch_add(1, Relaxed);
        self.end_zygote(&least).then_some(least)
    }

    fn end_zygote(&self, id: &str) -> bool {
        let Some(Living { zygote, .. }) = self.shared.zygotes.remove(id) else {
            return false;
        };
        // First whoever was born in its group and is in no other yet.
        if let Some(group) = zygote.end() {
            zygote.lent.put_back(group, &self.shared.pool);
        }
        zygote.end_spares(&self.shared.pool);
        zygote.lent.close(&self.shared.pool);
        self.shared.zygotes.strays.expect();
        self.shared.reap_strays();
        // Who is about to end is reaped by the thread that watches.
        self.shared.wake();
        true
    }

    pub(crate) fn end_zygotes(&self) {
        for zygote in self.zygotes() {
            self.end_zygote(&zygote.id);
        }
    }

    /// Makes a sandbox that runs Python: by a fork of a Zygote if there is one that may be used.
    pub(crate) fn create_python(
        &self,
        request: Request,
        stdio: Stdio,
        starters: &Starters,
    ) -> Result<Arc<Sandbox>> {
        let Some(python) = request.python.clone() else {
            return Err(SandboxError::Invalid(
                "this is no program of Python".to_owned(),
            ));
        };
        let mounts = Mounts::of(&request)?;
        let (stdio, streams) = open_stdio(stdio)?;
        let mut prepared = Prepared {
            request,
            mounts,
            stdio,
            streams,
        };
        // A Zygote cannot give its child the network of the machine, which it does not have.
        if prepared.request.network != Network::Host
            && let Some(zygote) = self.zygote_for(&prepared.request, &python)
        {
            let underway = self.shared.zygotes.strays.underway();
            let forked = self.fork(&zygote, &python.packages, &mut prepared);
            if forked.is_err() {
                drop(underway);
            }
            match forked {
                Ok((child, group)) => {
                    return self.enroll_child(&zygote, child, group, &python, prepared);
                }
                Err(error @ SandboxError::Zygote { .. }) => {
                    log::warn!("{error}; it is replaced, and the sandbox starts without it");
                    if self.end_zygote(&zygote.id) {
                        self.shared.zygotes.replaced.fetch_add(1, Relaxed);
                    }
                }
                Err(error) if prepared.request.network == Network::Veth => {
                    log::warn!(
                        "{error}; the sandbox starts without the Zygote {}",
                        zygote.id
                    );
                }
                Err(error) => return Err(error),
            }
            // Its child may have mounted them.
            prepared.mounts = Mounts::of(&prepared.request)?;
        }
        self.shared.zygotes.fresh.fetch_add(1, Relaxed);
        let Prepared {
            request,
            mounts,
            stdio,
            streams,
        } = prepared;
        self.create_fresh(request, starters, &mounts, &stdio, streams)
    }

    fn enroll_child(
        &self,
        zygote: &Arc<Zygote>,
        child: Child,
        group: Group,
        python: &Python,
        prepared: Prepared,
    ) -> Result<Arc<Sandbox>> {
        self.shared.zygotes.hit(zygote);
        let counter = match zygote.spec.packages == python.packages {
            true => &self.shared.zygotes.exact,
            false => &self.shared.zygotes.partial,
        };
        counter.fetch_add(1, Relaxed);
        let controls = Controls {
            group,
            network: child.network,
            next: Next::Siblings(Arc::clone(&zygote.lent)),
            mounts: None,
        };
        let newborn = Newborn {
            started: child.started,
            user: child.user,
            ancestry: zygote.ancestry.clone(),
        };
        let sandbox = self.enroll(prepared.request, newborn, controls, prepared.streams)?;
        let (zygote, shared) = (Arc::clone(zygote), Arc::clone(&self.shared));
        self.preparing.run(move || {
            let underway = shared.zygotes.strays.underway();
            if let Err(error) = zygote.prepare(&shared.pool) {
                log::debug!("no child is forked in advance: {error}");
            }
            drop(underway);
            if shared.zygotes.strays.are_due() {
                shared.reap_strays();
            }
        });
        Ok(sandbox)
    }

    /// Returns the Zygote that a request is to be forked from, which may have to be made first.
    fn zygote_for(&self, request: &Request, python: &Python) -> Option<Arc<Zygote>> {
        let mut chosen = self.shared.zygotes.choose(request, python);
        if let Some(zygote) = chosen.take_if(|zygote| !zygote.is_fit()) {
            log::info!(
                "the Zygote {} has ended or grown; it is replaced",
                zygote.id
            );
            self.shared.zygotes.replaced.fetch_add(1, Relaxed);
            self.end_zygote(&zygote.id);
            if let Err(error) = self.add_zygote(zygote.spec.clone()) {
                log::warn!("{error}");
            }
            chosen = self.shared.zygotes.choose(request, python);
        }
        if let Some(zygote) = &chosen
            && zygote.spec.packages == python.packages
        {
            let learned = self.learned(request, python, &python.packages);
            if zygote
                .spec
                .learned
                .as_ref()
                .is_none_or(|has| *has == learned)
            {
                return chosen;
            }
            self.renew(zygote, learned);
            return self.shared.zygotes.choose(request, python);
        }
        let now = Instant::now();
        if !self
            .shared
            .zygotes
            .needs
            .lock()
            .comes_again(&python.packages, now)
        {
            return chosen;
        }
        match self.grow(request, python, chosen.as_ref(), now) {
            Ok(()) => self.shared.zygotes.choose(request, python),
            Err(error) => {
                log::warn!("no Zygote for {:?}: {error}", python.packages);
                chosen
            }
        }
    }

    /// Makes the Zygotes that lead to a need, from the best that there is.
    fn grow(
        &self,
        request: &Request,
        python: &Python,
        best: Option<&Arc<Zygote>>,
        now: Instant,
    ) -> Result<()> {
        let hot = self.shared.zygotes.needs.lock().hot(now);
        let mut best = best.cloned();
        for packages in self.shared.zygotes.plan(request, python, &hot) {
            let learned = self.learned(request, python, &packages);
            let spec = ZygoteSpec {
                packages,
                learned: Some(learned),
                store: request.packages.clone(),
                modules: best
                    .as_ref()
                    .map_or_else(Vec::new, |zygote| zygote.spec.modules.clone()),
                ..ZygoteSpec::new(&request.base, &python.interpreter, &[])
            };
            let parent = best.take();
            best = self.living(&self.make_learned(parent.as_ref(), spec)?.id);
        }
        Ok(())
    }

    /// Puts a Zygote in the place of one with the same packages, since programs are now known to import other
    /// modules of these.
    fn renew(&self, former: &Zygote, learned: Vec<String>) {
        // Somebody else may be doing it.
        if !self.end_zygote(&former.id) {
            return;
        }
        let parent = former.parent.as_deref().and_then(|id| self.living(id));
        let spec = ZygoteSpec {
            learned: Some(learned),
            ..former.spec.clone()
        };
        if let Err(error) = self.make_learned(parent.as_ref(), spec) {
            log::warn!("no Zygote for {:?}: {error}", former.spec.packages);
        }
    }

    /// Makes a Zygote, from another one if there is one. If it cannot import what was learned, it is made without,
    /// and so are the next ones.
    fn make_learned(&self, parent: Option<&Arc<Zygote>>, spec: ZygoteSpec) -> Result<ZygoteView> {
        let refused = match self.make_from(parent, spec.clone()) {
            Err(error) if spec.learned.as_ref().is_some_and(|all| !all.is_empty()) => error,
            made => return made,
        };
        log::info!("{refused}: without the modules that programs import");
        self.shared.zygotes.imports.lock().refuse(ImportKey {
            base: spec.base.clone(),
            interpreter: spec.interpreter.clone(),
            store: spec.store.clone(),
            packages: spec.packages.clone(),
        });
        let learned = Some(Vec::new());
        self.make_from(parent, ZygoteSpec { learned, ..spec })
    }

    fn make_from(&self, parent: Option<&Arc<Zygote>>, spec: ZygoteSpec) -> Result<ZygoteView> {
        let Some(parent) = parent else {
            return self.add_zygote(spec);
        };
        self.derive_zygote(parent, spec.clone()).or_else(|error| {
            log::debug!("no Zygote from {}: {error}", parent.id);
            self.add_zygote(spec)
        })
    }

    fn living(&self, id: &str) -> Option<Arc<Zygote>> {
        let live = self.shared.zygotes.live.lock();
        let mut zygotes = live.iter().map(|living| &living.zygote);
        zygotes.find(|zygote| zygote.id == id).cloned()
    }

    /// Returns the modules that all programs with these packages have imported, as far as is known.
    fn learned(&self, request: &Request, python: &Python, packages: &Packages) -> Vec<String> {
        let key = import_key(request, python, packages);
        self.shared.zygotes.imports.lock().common(&key)
    }

    /// Has a Zygote's child run a request, in a group of the sandbox's own: one that waits, or a new one.
    fn fork(
        &self,
        zygote: &Zygote,
        packages: &Packages,
        prepared: &mut Prepared,
    ) -> Result<(Child, Group)> {
        let pool = &self.shared.pool;
        if let Some(spare) = zygote.take_spare(pool) {
            let (group, waiting) = spare.into_parts();
            match self.fork_in(group, zygote, packages, prepared, Some(waiting)) {
                Err(error @ SandboxError::Zygote { .. }) => {
                    log::info!("{error}, which was forked in advance");
                    // It may have mounted them.
                    prepared.mounts = Mounts::of(&prepared.request)?;
                }
                forked => return forked,
            }
        }
        let group = zygote.take_group(pool)?;
        self.fork_in(group, zygote, packages, prepared, None)
    }

    fn fork_in(
        &self,
        mut group: Group,
        zygote: &Zygote,
        packages: &Packages,
        prepared: &Prepared,
        waiting: Option<Waiting>,
    ) -> Result<(Child, Group)> {
        let Prepared {
            request,
            mounts,
            stdio,
            ..
        } = prepared;
        let forked = group.limit(&request.limits).and_then(|()| {
            let parts = Parts {
                group: &group,
                network: None,
                room: None,
                mounts,
                stdio,
                user: self.user_of(group.slot),
            };
            zygote.fork(request, packages, &parts, waiting, &self.shared.networks)
        });
        match forked {
            Ok(child) => Ok((child, group)),
            Err(error) => {
                zygote.lent.put_back(group, &self.shared.pool);
                Err(error)
            }
        }
    }
}

fn import_key(request: &Request, python: &Python, packages: &Packages) -> ImportKey {
    ImportKey {
        base: request.base.clone(),
        interpreter: python.interpreter.clone(),
        store: request.packages.clone(),
        packages: packages.clone(),
    }
}
