//! The texts of policies: the folder, what clients apply, and what earlier daemons have kept.

use std::{
    collections::{HashMap, HashSet},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    ends::{FIRST_LOOK_AGAIN, TRY_AGAIN},
    state::{Engine, Left},
};
use crate::{
    policies::{
        folder::{self, MOST_FILES, PolicyFile},
        kept::KeptPolicy,
        policy::Policy,
        since_epoch,
        spec::PolicySpec,
        status::{PolicySource, PolicyStatus},
        traced::{end_lease, leases_in},
    },
    process::Session,
    refusal::{Reason, Refusal, Result},
    toml_file::Mistake,
    types::LeaseId,
};

/// The most policies that clients have applied.
const MOST_APPLIED: usize = 256;
/// The most policies that are remembered after their end.
const MOST_EXPIRED: usize = 32;
/// The longest time between two looks at the clock, which may be set.
const LOOK_AT_CLOCK: Duration = Duration::from_secs(60);

// === impl Engine ===

impl Engine {
    /// Takes up what clients have applied to an earlier daemon.
    pub(super) fn take_applied(&mut self) {
        for kept in self.kept() {
            if kept.path.is_none() {
                self.take_kept(kept, PolicySource::Applied);
            }
        }
    }

    fn kept(&self) -> Vec<KeptPolicy> {
        let kept = self.keeper.as_ref().map(|keeper| keeper.all());
        kept.unwrap_or_default()
    }

    /// Puts a policy in force as an earlier daemon has kept it.
    fn take_kept(&mut self, kept: KeptPolicy, source: PolicySource) {
        let KeptPolicy {
            name,
            text,
            since,
            expires,
            path: _,
        } = kept;
        let begun = match PolicySpec::parse(&text) {
            Ok(spec) if spec.name == name => {
                Policy::new(&self.registry, (spec, text), source, (since, expires), true)
            }
            Ok(_) | Err(_) => {
                let message = format!("what was kept of the policy {name} is not usable");
                Err(Refusal::new(Reason::Policy, message))
            }
        };
        match begun {
            Ok(policy) => self.policies.push(policy),
            Err(refusal) => tracing::warn!(policy = name, %refusal, "a policy does not go on"),
        }
    }

    /// Reads the folder of policies. A file with mistakes changes nothing.
    ///
    /// # Errors
    /// The folder cannot be read. Everything stays as it is, also what an earlier daemon has kept.
    pub(super) fn load(&mut self) -> Result<()> {
        let Some(folder) = self.folder.clone() else {
            return Ok(());
        };
        self.broken.clear();
        let kept = self.kept();
        let files = match folder::read(&folder) {
            Ok(files) => files,
            Err(error) => {
                let message = format!("cannot read the policies in {}: {error}", folder.display());
                tracing::error!(message);
                for kept in kept {
                    if let Some(path) = kept.path.clone()
                        && self.find(&kept.name).is_none()
                    {
                        self.take_kept(kept, PolicySource::File(path));
                    }
                }
                let source = PolicySource::File(folder);
                let mistakes = vec![Mistake::of_file(message.clone())];
                self.broken.push(PolicyStatus::of_broken(source, mistakes));
                return Err(Refusal::new(Reason::Io, message));
            }
        };
        // The names of the files that are policies.
        let named: HashMap<PathBuf, String> = files
            .iter()
            .filter_map(|file| {
                let (spec, _) = file.policy.as_ref().ok()?;
                Some((file.path.clone(), spec.name.clone()))
            })
            .collect();
        let paths: HashSet<PathBuf> = files.iter().map(|file| file.path.clone()).collect();
        let mut names = HashSet::new();
        for PolicyFile { path, policy } in files {
            let taken = policy.and_then(|(spec, text)| {
                let holder = kept.iter().find(|kept| kept.name == spec.name);
                let holder = holder.and_then(|kept| kept.path.clone());
                self.check_name(&path, &spec.name, &names, &named, holder)?;
                self.take_file(&path, spec, text, &kept)
            });
            match taken {
                Ok(name) => {
                    names.insert(name);
                }
                Err(mistakes) => {
                    for mistake in &mistakes {
                        tracing::error!(
                            file = %path.display(),
                            %mistake,
                            "a policy has a mistake, so its file changes nothing"
                        );
                    }
                    names.extend(self.stay(&path, mistakes, &kept));
                }
            }
        }
        let is_gone = |policy: &&Policy| {
            matches!(policy.source, PolicySource::File(_)) && !names.contains(&policy.name)
        };
        let gone = self.policies.iter().filter(is_gone);
        let gone: Vec<String> = gone.map(|policy| policy.name.clone()).collect();
        gone.iter().for_each(|name| self.drop_policy(name));
        for kept in &kept {
            // A file with mistakes may be right again.
            if kept.path.as_ref().is_some_and(|path| !paths.contains(path))
                && !names.contains(&kept.name)
                && let Some(keeper) = &self.keeper
            {
                keeper.forget(&kept.name);
            }
        }
        self.policies.sort_by_key(|policy| policy.since);
        self.sweeps.next = Instant::now();
        Ok(())
    }

    /// Checks that the name of a file's policy is no other policy's.
    fn check_name(
        &self,
        path: &Path,
        name: &str,
        names: &HashSet<String>,
        named: &HashMap<PathBuf, String>,
        holder: Option<PathBuf>,
    ) -> std::result::Result<(), Vec<Mistake>> {
        let found = self.find(name).map(|other| other.source.clone());
        // An earlier daemon has had the policy of this file.
        let found = found.or(holder.map(PolicySource::File));
        let place = match &found {
            Some(PolicySource::Applied) => "applied by a client".to_owned(),
            // The file in force keeps the name, while it has it.
            Some(PolicySource::File(other))
                if other != path
                    && (names.contains(name)
                        || named.get(other).is_some_and(|its| its == name)) =>
            {
                format!("in {}", other.display())
            }
            Some(PolicySource::File(_)) | None => return Ok(()),
        };
        Err(vec![Mistake::of_file(format!(
            "a policy {name:?} is {place}"
        ))])
    }

    /// Puts the policy of a file in force. Returns its name.
    ///
    /// # Errors
    /// Its patterns exceed the quota.
    fn take_file(
        &mut self,
        path: &Path,
        spec: PolicySpec,
        text: String,
        kept: &[KeptPolicy],
    ) -> std::result::Result<String, Vec<Mistake>> {
        let (name, expires) = (spec.name.clone(), spec.expires);
        let source = PolicySource::File(path.to_owned());
        if let Some(policy) = self.find_mut(&name)
            && *policy.text == *text
            && policy.source == source
        {
            policy.mistakes.clear();
            // The clock may have been set.
            policy.has_expired = false;
            return Ok(name);
        }
        let kept = kept.iter().find(|kept| kept.name == name);
        let earlier = kept.and_then(|kept| PolicySpec::parse(&kept.text).ok());
        let adopts = earlier.is_some_and(|earlier| earlier.trace == spec.trace);
        let since = kept.map(|kept| kept.since);
        self.begin((spec, text), source, (since, expires), adopts)
            .map_err(|refusal| vec![Mistake::of_file(refusal.message)])?;
        Ok(name)
    }

    /// Keeps what a file was before it had mistakes. Returns the name of that policy.
    fn stay(&mut self, path: &Path, mistakes: Vec<Mistake>, kept: &[KeptPolicy]) -> Option<String> {
        let source = PolicySource::File(path.to_owned());
        if !self.policies.iter().any(|policy| policy.source == source) {
            let kept = kept.iter().find(|kept| kept.path.as_deref() == Some(path));
            let kept = kept.filter(|kept| self.find(&kept.name).is_none());
            if let Some(kept) = kept {
                self.take_kept(kept.clone(), source.clone());
            }
        }
        let mut policies = self.policies.iter_mut();
        if let Some(policy) = policies.find(|policy| policy.source == source) {
            policy.mistakes = mistakes;
            return Some(policy.name.clone());
        }
        if self.broken.len() < MOST_FILES {
            self.broken.push(PolicyStatus::of_broken(source, mistakes));
        }
        None
    }

    /// Puts a policy in force, in the place of an earlier version of itself.
    ///
    /// # Errors
    /// The patterns of its selection exceed the quota.
    fn begin(
        &mut self,
        (spec, text): (PolicySpec, String),
        source: PolicySource,
        (since, expires): (Option<u64>, Option<u64>),
        adopts: bool,
    ) -> Result<()> {
        let name = spec.name.clone();
        let at = self.policies.iter().position(|other| other.name == name);
        let since = at.map(|at| self.policies[at].since).or(since);
        let kept = KeptPolicy {
            name: name.clone(),
            text: text.clone(),
            since: since.unwrap_or_else(|| since_epoch().as_secs()),
            expires,
            path: match &source {
                PolicySource::File(path) => Some(path.clone()),
                PolicySource::Applied => None,
            },
        };
        // What this thread has switched on itself it switches off itself.
        let adopts = adopts && at.is_none();
        let times = (kept.since, expires);
        let mut policy = Policy::new(&self.registry, (spec, text), source, times, adopts)?;
        match at {
            Some(at) => {
                let earlier = self.policies.remove(at);
                let lease = policy.tracing.lease;
                let changed = policy.replace(earlier);
                self.policies.insert(at, policy);
                self.end_leases(changed, lease);
                tracing::info!(policy = name, "a policy has changed");
            }
            None => {
                if !adopts {
                    // An earlier daemon may have left something else on.
                    let lease = policy.tracing.lease;
                    let mut found = self.registry.sessions();
                    found.retain(|session| leases_in(&self.registry, session).contains(&lease));
                    self.end_leases(found, lease);
                }
                self.policies.push(policy);
                tracing::info!(policy = name, "a policy is in force");
            }
        }
        self.expired.retain(|status| status.name != name);
        if let Some(keeper) = &self.keeper {
            keeper.keep(&kept);
        }
        self.sweeps.next = Instant::now();
        Ok(())
    }

    pub(super) fn apply(
        &mut self,
        spec: PolicySpec,
        text: String,
        expires: Option<u64>,
    ) -> Result<()> {
        let name = &spec.name;
        match self.find(name).map(|policy| &policy.source) {
            Some(PolicySource::File(path)) => {
                let message = format!(
                    "the policy {name} is in {}: change the file",
                    path.display()
                );
                return Err(Refusal::new(Reason::Policy, message));
            }
            Some(PolicySource::Applied) => {}
            None => {
                let applied = |policy: &&Policy| policy.source == PolicySource::Applied;
                if self.policies.iter().filter(applied).count() >= MOST_APPLIED {
                    let message = format!("clients have applied {MOST_APPLIED} policies already");
                    return Err(Refusal::new(Reason::TooMany, message));
                }
            }
        }
        self.begin((spec, text), PolicySource::Applied, (None, expires), false)
    }

    pub(super) fn remove(&mut self, name: &str) -> Result<()> {
        let message = match self.find(name).map(|policy| &policy.source) {
            Some(PolicySource::Applied) => {
                self.drop_policy(name);
                return Ok(());
            }
            Some(PolicySource::File(path)) => format!(
                "the policy {name} is in {}: remove the file, and reload the policies",
                path.display()
            ),
            None => {
                let before = self.expired.len();
                self.expired.retain(|status| status.name != name);
                if self.expired.len() < before {
                    return Ok(());
                }
                format!("there is no policy {name}")
            }
        };
        Err(Refusal::new(Reason::Policy, message))
    }

    /// Ends a policy, and forgets it.
    fn drop_policy(&mut self, name: &str) {
        let at = self.policies.iter().position(|policy| policy.name == name);
        if let Some(at) = at {
            let policy = self.policies.remove(at);
            self.end(policy);
            tracing::info!(policy = name, "a policy is not in force any more");
            if let Some(keeper) = &self.keeper {
                keeper.forget(name);
            }
        }
    }

    /// Ends a lease whose policy wants something else by now. Sessions that the policy does not
    /// come back to are let go of a moment later.
    fn end_leases(&mut self, sessions: Vec<Arc<Session>>, lease: LeaseId) {
        for session in sessions {
            if let Err(refusal) = end_lease(&self.registry, &session, lease) {
                tracing::debug!(pid = %session.pid(), %refusal, "a lease goes on for a moment");
            }
            self.left.push(Left {
                session,
                lease,
                next: Instant::now() + TRY_AGAIN,
                pause: FIRST_LOOK_AGAIN,
            });
        }
    }

    /// Has everything switched off that a policy has on.
    fn end(&mut self, mut policy: Policy) -> Policy {
        let lease = policy.tracing.lease;
        let mut sessions = policy.end();
        // Processes that are followed have the lease, too.
        let others = self.registry.sessions().into_iter();
        sessions.extend(others.filter(|session| {
            session.is_living() && leases_in(&self.registry, session).contains(&lease)
        }));
        for session in sessions {
            self.leave(session, lease);
        }
        policy
    }

    pub(super) fn expire(&mut self) {
        let now = since_epoch().as_secs();
        for at in (0..self.policies.len()).rev() {
            let policy = &self.policies[at];
            if policy.has_expired || !policy.is_over(now) {
                continue;
            }
            tracing::info!(policy = policy.name, "a policy has expired");
            let policy = self.policies.remove(at);
            let mut policy = self.end(policy);
            policy.has_expired = true;
            match policy.source {
                PolicySource::File(_) => self.policies.insert(at, policy),
                PolicySource::Applied => {
                    if let Some(keeper) = &self.keeper {
                        keeper.forget(&policy.name);
                    }
                    if self.expired.len() == MOST_EXPIRED {
                        self.expired.remove(0);
                    }
                    self.expired.push(policy.status());
                }
            }
        }
    }

    /// The next end of a policy. The clock may be set, so it is looked at each minute.
    pub(super) fn next_expiry(&self) -> Option<Instant> {
        let now = since_epoch();
        let policies = self.policies.iter().filter(|policy| !policy.has_expired);
        let left = policies
            .filter_map(|policy| Duration::from_secs(policy.expires?).checked_sub(now))
            .min()?;
        Some(self.last + left.min(LOOK_AT_CLOCK))
    }

    pub(super) fn find(&self, name: &str) -> Option<&Policy> {
        self.policies.iter().find(|policy| policy.name == name)
    }

    fn find_mut(&mut self, name: &str) -> Option<&mut Policy> {
        self.policies.iter_mut().find(|policy| policy.name == name)
    }
}
