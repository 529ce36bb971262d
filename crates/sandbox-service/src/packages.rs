//! What the daemon does about packages.

use sandbox::{Request, SandboxError};
use sandbox_packages::{Claim, Installed, Installer, PackageError, Result, Source};

use crate::Daemon;
use crate::bodies::{AddPackages, Added, PackageSource};

impl Daemon {
    /// Has packages be there, with all that they need.
    ///
    /// # Errors
    /// If they cannot be resolved or installed.
    pub fn add_packages(&self, add: &AddPackages) -> Result<Added> {
        let mut installer = Installer::new(&add.base, &add.interpreter);
        installer.pip.clone_from(&add.pip);
        let source = match &add.from {
            PackageSource::Index(address) => Source::Index(address.clone()),
            PackageSource::Directory(dir) => Source::Directory(dir.clone()),
        };
        for package in &add.build {
            self.store
                .build(&self.sandboxes, &installer, package, &source)?;
        }
        let packages = self
            .store
            .add(&self.sandboxes, &installer, &add.requirements, &source)?;
        let packages = packages.into_iter().collect();
        Ok(Added { packages })
    }

    /// Returns all packages.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn packages(&self) -> Result<Vec<Installed>> {
        self.store.list()
    }

    /// Removes a package, and ends the Zygotes that have it.
    ///
    /// # Errors
    /// If there is none, or a sandbox has it.
    pub fn remove_package(&self, base: &str, package: &str) -> Result<()> {
        self.store.remove(&self.sandboxes, base, package)
    }

    /// Has a request get the packages that its requirements took when they were added. Packages without
    /// a directory of their own are those of the daemon's store; none of those is removed before the claim is dropped.
    pub(crate) fn with_packages(
        &self,
        mut request: Request,
        requires: &[String],
    ) -> sandbox::Result<(Request, Option<Claim>)> {
        let Some(python) = &mut request.python else {
            return match requires {
                [] => Ok((request, None)),
                _ => Err(SandboxError::Invalid(
                    "only a program of Python requires packages".to_owned(),
                )),
            };
        };
        let mut claimed = None;
        if !requires.is_empty() {
            if request.packages.is_some() {
                let message =
                    "what is required is in the daemon's own store, and not in another directory";
                return Err(SandboxError::Invalid(message.to_owned()));
            }
            let packages = self.store.packages_of(&request.base, requires);
            let (packages, claim) = packages.map_err(invalid)?;
            python.packages.extend(packages);
            // The others are claimed below, before these are not any more.
            claimed = Some(claim);
        }
        if !python.packages.is_empty() && request.packages.is_none() {
            let claim = self.store.claim(&request.base, &python.packages);
            claimed = Some(claim.map_err(invalid)?);
            request.packages = Some(self.store.dir_of(&request.base));
        }
        Ok((request, claimed))
    }
}

fn invalid(error: PackageError) -> SandboxError {
    match error {
        PackageError::Invalid(message) | PackageError::Unknown(message) => {
            SandboxError::Invalid(message)
        }
        other => SandboxError::Invalid(other.to_string()),
    }
}
