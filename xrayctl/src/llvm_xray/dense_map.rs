//! A hash table whose entries come in the order of LLVM's `DenseMap`, because `llvm-xray` prints
//! its threads, functions and edges in that order.
//!
//! It follows `llvm/ADT/DenseMap.h` and `DenseMapInfo.h` of LLVM 19: at least 64 buckets, a power
//! of two, at most three quarters full, and probing whose steps grow by one.

use std::collections::HashMap;
use std::hash::Hash;

use super::hash;

/// The buckets of the smallest table.
const FEWEST: usize = 64;

/// A key with LLVM's hash.
pub(super) trait Key: Clone + Eq + Hash {
    /// The hash by which LLVM places the key.
    fn place_hash(&self) -> u32;
}

/// A map in LLVM's order.
#[derive(Debug, Clone)]
pub(super) struct DenseMap<K, V> {
    /// The number of each key in `entries`.
    numbers: HashMap<K, usize>,
    /// The entries in the order in which they came; `None` where one was removed.
    entries: Vec<Option<(K, V)>>,
    buckets: Vec<Bucket>,
    removed: usize,
}

/// A place of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bucket {
    Empty,
    /// An entry was here. The place counts as taken until the table grows.
    Removed,
    /// The entry with this number.
    Taken(usize),
}

// === impl DenseMap ===

impl<K, V> Default for DenseMap<K, V> {
    fn default() -> Self {
        Self {
            numbers: HashMap::new(),
            entries: Vec::new(),
            buckets: Vec::new(),
            removed: 0,
        }
    }
}

impl<K: Key, V> DenseMap<K, V> {
    /// The number of entries.
    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Whether the map has no entry.
    pub(super) fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    /// The value of a key.
    pub(super) fn get(&self, key: &K) -> Option<&V> {
        let number = *self.numbers.get(key)?;
        self.entries.get(number)?.as_ref().map(|(_, value)| value)
    }

    /// The value of a key, which is made if there is none.
    pub(super) fn entry(&mut self, key: K) -> &mut V
    where
        V: Default,
    {
        let number = match self.numbers.get(&key) {
            Some(number) => *number,
            None => self.insert(key.clone()),
        };
        // The number is of an entry with a value.
        let entry = self.entries[number].get_or_insert_with(|| (key, V::default()));
        &mut entry.1
    }

    /// Removes a key.
    pub(super) fn remove(&mut self, key: &K) -> Option<V> {
        let number = self.numbers.remove(key)?;
        let place = self.place_of(number)?;
        self.buckets[place] = Bucket::Removed;
        self.removed += 1;
        self.entries.get_mut(number)?.take().map(|(_, value)| value)
    }

    /// The entries in LLVM's order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.buckets.iter().filter_map(|bucket| match bucket {
            Bucket::Taken(number) => {
                let (key, value) = self.entries.get(*number)?.as_ref()?;
                Some((key, value))
            }
            Bucket::Empty | Bucket::Removed => None,
        })
    }

    /// All values, in no order.
    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.entries.iter_mut().flatten().map(|(_, value)| value)
    }

    /// Adds a key, and returns its number. `entry` gives it a value.
    fn insert(&mut self, key: K) -> usize
    where
        V: Default,
    {
        let number = self.entries.len();
        let (count, size) = (self.numbers.len() + 1, self.buckets.len());
        if count * 4 >= size * 3 {
            self.rebuild((size * 2).max(FEWEST));
        } else if size - (count + self.removed) <= size / 8 {
            self.rebuild(size);
        }
        let place = self.free_place(&key);
        if self.buckets[place] == Bucket::Removed {
            self.removed -= 1;
        }
        self.buckets[place] = Bucket::Taken(number);
        self.numbers.insert(key.clone(), number);
        self.entries.push(Some((key, V::default())));
        number
    }

    /// Moves the entries to a table with this number of buckets, in the order of the old one.
    fn rebuild(&mut self, size: usize) {
        let old = std::mem::replace(&mut self.buckets, vec![Bucket::Empty; size]);
        self.removed = 0;
        for bucket in old {
            let Bucket::Taken(number) = bucket else {
                continue;
            };
            let Some((key, _)) = &self.entries[number] else {
                continue;
            };
            let key = key.clone();
            let place = self.free_place(&key);
            self.buckets[place] = bucket;
        }
    }

    /// The place for a key that is not in the table: the first one on its way where an entry was
    /// removed, else the empty one at the end of the way.
    fn free_place(&self, key: &K) -> usize {
        let mut first_removed = None;
        for place in self.way(key.place_hash()) {
            match self.buckets[place] {
                Bucket::Empty => return first_removed.unwrap_or(place),
                Bucket::Removed => first_removed = first_removed.or(Some(place)),
                Bucket::Taken(_) => {}
            }
        }
        first_removed.unwrap_or_default()
    }

    /// The place of an entry.
    fn place_of(&self, number: usize) -> Option<usize> {
        let (key, _) = self.entries.get(number)?.as_ref()?;
        let mut way = self.way(key.place_hash());
        way.find(|place| self.buckets[*place] == Bucket::Taken(number))
    }

    /// The places where a key with this hash may be, each once.
    fn way(&self, hash: u32) -> impl Iterator<Item = usize> + use<K, V> {
        let size = self.buckets.len();
        let mask = size.wrapping_sub(1);
        let mut place = hash as usize & mask;
        (1..=size).map(move |step| {
            let here = place;
            place = (place + step) & mask;
            here
        })
    }
}

// === impl Key ===

impl Key for u32 {
    fn place_hash(&self) -> u32 {
        self.wrapping_mul(37)
    }
}

impl Key for i32 {
    fn place_hash(&self) -> u32 {
        self.cast_unsigned().wrapping_mul(37)
    }
}

impl Key for u64 {
    #[expect(clippy::cast_possible_truncation, reason = "LLVM takes the low half")]
    fn place_hash(&self) -> u32 {
        hash::mix(*self) as u32
    }
}

impl Key for String {
    #[expect(clippy::cast_possible_truncation, reason = "LLVM takes the low half")]
    fn place_hash(&self) -> u32 {
        hash::of_bytes(self.as_bytes()) as u32
    }
}

impl<A: Key, B: Key> Key for (A, B) {
    fn place_hash(&self) -> u32 {
        let both = u64::from(self.0.place_hash()) << 32 | u64::from(self.1.place_hash());
        both.place_hash()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removed_place_is_used_again_and_growth_keeps_the_order_of_places() {
        let mut map = DenseMap::<u32, u32>::default();
        // These three begin at the same place of 64.
        for key in [0, 64, 128] {
            *map.entry(key) = key;
        }
        let keys = |map: &DenseMap<u32, u32>| map.iter().map(|(key, _)| *key).collect::<Vec<_>>();
        assert_eq!(keys(&map), [0, 64, 128]);
        assert_eq!(map.remove(&64), Some(64));
        assert_eq!(map.get(&64), None);
        *map.entry(192) = 192;
        assert_eq!(keys(&map), [0, 192, 128]);
        for key in 1..48 {
            *map.entry(key) = key;
        }
        assert_eq!(map.len(), 50);
        assert_eq!(map.get(&192), Some(&192));
        assert_eq!(map.get(&47), Some(&47));
        assert_eq!(keys(&map).len(), 50);
    }
}
