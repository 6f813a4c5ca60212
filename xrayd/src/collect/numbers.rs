//! The sites of the numbers under which threads count calls. The counts themselves are in `ring`.

use super::slots::Slots;

/// The names of sites, by their numbers; 0 for a number that no site has, such as 0 itself.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    names: Vec<u32>,
}

// === impl Numbers ===

impl Numbers {
    /// Reads the names of new sites, if one of these numbers is unknown.
    pub(super) fn learn(&mut self, slots: &Slots, mut numbers: impl Iterator<Item = u64>) {
        if numbers.all(|number| number == 0 || self.name(number).is_some()) {
            return;
        }
        let numbered = usize::try_from(slots.numbered()).unwrap_or(0);
        self.names.resize(numbered, 0);
        for (name, number) in slots.names() {
            let place = usize::try_from(number).ok();
            if let Some(known) = place.and_then(|place| self.names.get_mut(place)) {
                *known = name;
            }
        }
    }

    /// The site of a number. `None` for 0, which stands for sites without a number, and for a
    /// number that no site has.
    pub(super) fn name(&self, number: u64) -> Option<u32> {
        let place = usize::try_from(number).ok()?;
        self.names.get(place).copied().filter(|name| *name != 0)
    }
}
