//! Anonymous and shared memory for the machine: plain words behind a raw pointer. Nothing here has
//! a part in rings.

use std::{num::NonZeroUsize, os::fd::AsFd, ptr::NonNull};

use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous, mprotect, munmap};

/// A mapping of this process.
#[derive(Debug)]
pub(crate) struct Area {
    start: NonNull<u8>,
    length: NonZeroUsize,
}

// === impl Area ===

impl Area {
    /// Private memory for reads and writes.
    pub(crate) fn private(bytes: usize) -> Self {
        let length = NonZeroUsize::new(bytes).unwrap();
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe { mmap_anonymous(None, length, protection, MapFlags::MAP_PRIVATE) };
        Self {
            start: start.unwrap().cast(),
            length,
        }
    }

    /// Shared memory of a file, at an address that is a multiple of `align`.
    pub(crate) fn shared(file: impl AsFd, bytes: usize, align: usize) -> Self {
        let length = NonZeroUsize::new(bytes).unwrap();
        // Room for any place of the file in it. The rest stays mapped.
        let room = Self::private(bytes + align);
        let at = NonZeroUsize::new(
            usize::try_from(room.address())
                .unwrap()
                .next_multiple_of(align),
        )
        .unwrap();
        // The area that is returned replaces it below.
        let _room = std::mem::ManuallyDrop::new(room);
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let flags = MapFlags::MAP_SHARED | MapFlags::MAP_FIXED;
        // SAFETY: it replaces memory that was mapped for it two lines above and that nothing refers
        // to.
        let start = unsafe { mmap(Some(at), length, protection, flags, file, 0) };
        Self {
            start: start.unwrap().cast(),
            length,
        }
    }

    pub(crate) fn address(&self) -> u64 {
        self.start.as_ptr().expose_provenance() as u64
    }

    /// Makes it executable; it stays writable.
    pub(crate) fn make_executable(&self) {
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE | ProtFlags::PROT_EXEC;
        // SAFETY: no reference into the area exists.
        unsafe { mprotect(self.start.cast(), self.length.get(), protection) }.unwrap();
    }

    /// Makes the last page unreadable.
    pub(crate) fn close_last_page(&self) {
        const PAGE: usize = 4096;
        let last = self.place((self.length.get() - PAGE) as u64, PAGE);
        let last = NonNull::new(last).unwrap();
        // SAFETY: no reference into the area exists; the last page lies in it.
        unsafe { mprotect(last.cast(), PAGE, ProtFlags::PROT_NONE) }.unwrap();
    }

    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) {
        let place = self.place(offset, bytes.len());
        // SAFETY: `place` checked that so many bytes lie in the area; the source is a slice of this
        // program.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len()) };
    }

    pub(crate) fn read64(&self, offset: u64) -> u64 {
        // SAFETY: `place` checked the bounds; machine code of the same thread wrote it.
        unsafe { self.place(offset, 8).cast::<u64>().read_volatile() }
    }

    pub(crate) fn write64(&self, offset: u64, value: u64) {
        // SAFETY: `place` checked the bounds; only this thread uses the memory.
        unsafe { self.place(offset, 8).cast::<u64>().write_volatile(value) };
    }

    pub(crate) fn write32(&self, offset: u64, value: u32) {
        // SAFETY: `place` checked the bounds; only this thread uses the memory.
        unsafe { self.place(offset, 4).cast::<u32>().write_volatile(value) };
    }

    pub(crate) fn clear(&self, offset: u64, bytes: u64) {
        let bytes = usize::try_from(bytes).unwrap();
        let place = self.place(offset, bytes);
        // SAFETY: `place` checked the bounds; only this thread uses the memory.
        unsafe { place.write_bytes(0, bytes) };
    }

    pub(crate) fn copy(&self, offset: u64, bytes: u64) -> Vec<u8> {
        let mut copy = vec![0; usize::try_from(bytes).unwrap()];
        let place = self.place(offset, copy.len());
        // SAFETY: `place` checked the bounds; only this thread uses the memory; the vector is as
        // long.
        unsafe { std::ptr::copy_nonoverlapping(place, copy.as_mut_ptr(), copy.len()) };
        copy
    }

    fn place(&self, offset: u64, bytes: usize) -> *mut u8 {
        let offset = usize::try_from(offset).unwrap();
        assert!(offset + bytes <= self.length.get(), "within the area");
        // SAFETY: the offset was just checked to lie within the mapping.
        unsafe { self.start.as_ptr().add(offset) }
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: the area is this value's own and nothing refers to it any more.
        unsafe { munmap(self.start.cast(), self.length.get()) }.unwrap();
    }
}
