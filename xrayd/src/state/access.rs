//! The file of the rules of access: the text that was in force last. It is checked anew when it is
//! taken up, so it has no checksum.

use super::folder::StateFolder;
use crate::access::AccessKeeper;

/// Its name.
const NAME: &str = "access";

impl AccessKeeper for StateFolder {
    fn kept(&self) -> Option<String> {
        let bytes = self.bytes_of(NAME).ok()?;
        String::from_utf8(bytes).ok()
    }

    fn keep(&self, text: Option<&str>) {
        let Some(text) = text else {
            self.unlink(NAME);
            return;
        };
        if let Err(error) = self.replace(NAME, text.as_bytes()) {
            tracing::error!(
                %error,
                "cannot keep the rules of access: the next daemon may not know them"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_as_they_were_kept() {
        let place = tempfile::tempdir().unwrap();
        let folder = StateFolder::open(&place.path().join("state")).unwrap();
        assert_eq!(folder.kept(), None);
        folder.keep(Some("[[allow]]"));
        assert_eq!(folder.kept().as_deref(), Some("[[allow]]"));
        assert!(folder.records().unwrap().is_empty());
        folder.keep(None);
        folder.keep(None);
        assert_eq!(folder.kept(), None);
    }
}
