//! What the numbers mean under which threads count the calls of sites.

use super::slots::Slots;

/// The names of sites, by their numbers; 0 for a number that nobody has, such as 0 itself.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    names: Vec<u32>,
}

// === impl Numbers ===

impl Numbers {
    /// Reads which sites have come since the last time, if any have.
    pub(super) fn learn(&mut self, slots: &Slots) {
        let numbered = usize::try_from(slots.numbered()).unwrap_or(0);
        // A number is taken before its name is entered, so one may be missing that has been read about.
        if self.names.len() == numbered && !self.names.iter().skip(1).any(|name| *name == 0) {
            return;
        }
        self.names.resize(numbered, 0);
        for (name, number) in slots.names() {
            let place = usize::try_from(number).ok();
            if let Some(known) = place.and_then(|place| self.names.get_mut(place)) {
                *known = name;
            }
        }
    }

    /// The site of a number. `None` of 0, which stands for sites that have none, and of those that nobody has.
    pub(super) fn name(&self, number: u64) -> Option<u32> {
        let place = usize::try_from(number).ok()?;
        self.names.get(place).copied().filter(|name| *name != 0)
    }
}
