//! The proof that a target is as it was: every sled is off, and the rest of its text equals its
//! files. It only reads.

use std::{fs::File, io, ops::Range, os::unix::fs::FileExt};

use sled_encoders::x86_64::{State, classify};

use super::{
    page::failed_access,
    patch::{Patcher, RUN},
};
use crate::{
    pid::{Pid, TargetAddr},
    refusal::Result,
    sys::Memory,
    target::{Maps, open_mapped},
    types::PatchSite,
};

/// The proof that a target is as it was.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Proof {
    /// Sleds that were read back and are off.
    pub(crate) sleds_off: u64,
    /// Other sleds: they are on, or other code has patched them.
    pub(crate) sleds_on: u64,
    /// Bytes of text outside sleds that were compared with the file.
    pub(crate) compared: u64,
    /// Bytes among them that differ.
    pub(crate) different: u64,
}

// === impl Patcher ===

impl Patcher {
    /// Reads every sled back, and compares the rest of the text with the files.
    ///
    /// # Errors
    /// The memory cannot be read.
    pub(crate) fn prove(&self, memory: &Memory, maps: &Maps, sites: &[PatchSite]) -> Result<Proof> {
        let mut proof = Proof::default();
        for (&index, module) in &self.modules {
            let its: Vec<&PatchSite> = sites.iter().filter(|site| site.module == index).collect();
            let file = open_mapped(self.pid, &module.entry)
                .inspect_err(|error| {
                    tracing::warn!(
                        module = %module.path,
                        %error,
                        "cannot compare the text with the file"
                    );
                })
                .ok();
            for text in module.texts(maps) {
                proof.add_mapping((self.pid, memory), text, file.as_ref(), &its)?;
            }
        }
        Ok(proof)
    }
}

// === impl Proof ===

impl Proof {
    /// Checks one mapping. `text` is its range, and the offset in the file at which it begins.
    fn add_mapping(
        &mut self,
        (pid, memory): (Pid, &Memory),
        text: (Range<u64>, u64),
        file: Option<&File>,
        sites: &[&PatchSite],
    ) -> Result<()> {
        let (range, offset) = text;
        let first = sites.partition_point(|site| site.address < range.start);
        let mut sites = sites.get(first..).unwrap_or_default().iter().peekable();
        let (mut text, mut original) = (Vec::new(), Vec::new());
        let mut start = range.start;
        while start < range.end {
            // Pieces end between sleds.
            let mut end = range.end.min(start + RUN);
            let mut here = Vec::new();
            while let Some(site) = sites.next_if(|site| site.address < end) {
                end = end.max(site.end()).min(range.end);
                here.push(**site);
            }
            let length = usize::try_from(end - start).unwrap_or(0);
            text.resize(length, 0);
            memory
                .read(TargetAddr(start), &mut text)
                .map_err(|error| failed_access(pid, "read", start, &error))?;
            original.resize(length, 0);
            // A file ends before its last page does.
            let known = match (file, offset.checked_add(start - range.start)) {
                (Some(file), Some(offset)) => read_up_to(file, offset, &mut original),
                _ => 0,
            };
            let mut in_sleds = 0;
            for site in here {
                let at = usize::try_from(site.address - start).unwrap_or(0);
                let place = at..at + site.length();
                let Some(bytes) = text.get(place.clone()) else {
                    continue;
                };
                match classify(site.kind, site.address, bytes) {
                    State::Compiled | State::Staged { .. } => self.sleds_off += 1,
                    // The sled is on, or patched by other code: it is not proven to be off.
                    State::On { .. } | State::Runtime | State::Breakpoint | State::Foreign => {
                        self.sleds_on += 1;
                    }
                }
                let sled = at.min(known)..place.end.min(known);
                in_sleds += sled.len();
                if let (Some(bytes), Some(compiled)) =
                    (text.get_mut(sled.clone()), original.get(sled))
                {
                    bytes.copy_from_slice(compiled);
                }
            }
            self.compared += (known - in_sleds) as u64;
            let (text, original) = (text.get(..known), original.get(..known));
            if text != original {
                let pairs = text
                    .into_iter()
                    .flatten()
                    .zip(original.into_iter().flatten());
                self.different += pairs.filter(|(byte, original)| byte != original).count() as u64;
            }
            start = end;
        }
        Ok(())
    }
}

/// Fills `into` from `offset`, as far as the file goes and can be read. Returns the number of
/// bytes.
fn read_up_to(file: &File, offset: u64, into: &mut [u8]) -> usize {
    let mut filled = 0;
    while let Some(rest) = into.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, offset.saturating_add(filled as u64)) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                tracing::warn!(%error, "cannot compare the text with the file");
                break;
            }
        }
    }
    filled
}
