//! The files of policies: what a daemon that starts goes on with. The text of a policy is checked
//! anew when it is taken up, so a file has no checksum.

use std::{
    ffi::OsString,
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
};

use prost::Message as _;

use super::{folder::StateFolder, message};
use crate::policies::{KeptPolicy, PolicyKeeper};

/// Begin of the names of the files.
const POLICY: &str = "policy-";

impl PolicyKeeper for StateFolder {
    fn all(&self) -> Vec<KeptPolicy> {
        let names = self.names(POLICY).unwrap_or_else(|error| {
            tracing::error!(%error, "cannot list the policies of an earlier daemon");
            Vec::new()
        });
        let read = |name: String| {
            let kept = self.bytes_of(&name).ok();
            let kept = kept.and_then(|bytes| message::Policy::decode(&*bytes).ok());
            let kept = kept.filter(|kept| name == name_of(&kept.name));
            if kept.is_none() {
                tracing::warn!(file = name, "cannot use the file of a policy");
            }
            kept
        };
        names.into_iter().filter_map(read).map(kept_of).collect()
    }

    fn keep(&self, policy: &KeptPolicy) {
        let bytes = message_of(policy).encode_to_vec();
        if let Err(error) = self.replace(&name_of(&policy.name), &bytes) {
            tracing::error!(
                policy = policy.name,
                %error,
                "cannot write the file of a policy: the next daemon may not know it"
            );
        }
    }

    fn forget(&self, name: &str) {
        self.unlink(&name_of(name));
    }
}

/// The name of a file. The name of a policy has no `/`.
fn name_of(policy: &str) -> String {
    format!("{POLICY}{policy}")
}

fn message_of(policy: &KeptPolicy) -> message::Policy {
    let KeptPolicy {
        name,
        text,
        since,
        expires,
        path,
    } = policy;
    message::Policy {
        name: name.clone(),
        text: text.clone(),
        since: *since,
        expires: *expires,
        path: path
            .as_ref()
            .map(|path| path.as_os_str().as_bytes().to_vec()),
    }
}

fn kept_of(policy: message::Policy) -> KeptPolicy {
    let message::Policy {
        name,
        text,
        since,
        expires,
        path,
    } = policy;
    KeptPolicy {
        name,
        text,
        since,
        expires,
        path: path.map(|path| OsString::from_vec(path).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_read_as_they_were_kept() {
        let place = tempfile::tempdir().unwrap();
        let folder = StateFolder::open(&place.path().join("state")).unwrap();
        let policy = |name: &str, path: Option<&str>| KeptPolicy {
            name: name.to_owned(),
            text: format!("name = {name:?}"),
            since: 3,
            expires: path.is_none().then_some(7),
            path: path.map(Into::into),
        };
        let [applied, of_file] = [policy("a.b", None), policy("x", Some("/etc/x.toml"))];
        folder.keep(&of_file);
        folder.keep(&applied);
        assert_eq!(folder.all(), [applied.clone(), of_file]);
        folder.forget("x");
        folder.forget("x");
        // A file under another name, and one that is none.
        let file = |name: &str| place.path().join("state").join(name);
        std::fs::copy(file("policy-a.b"), file("policy-y")).unwrap();
        std::fs::write(file("policy-z"), b"\xff").unwrap();
        assert_eq!(folder.all(), [applied]);
        assert!(folder.records().unwrap().is_empty());
    }
}
