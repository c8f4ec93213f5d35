/* SPDX-License-Identifier: GPL-2.0 */
/* What the two ways of serving a VF have in common. */
#include <linux/pci.h>

#define LABGPU_BOARD_MIB 4096

static const struct labgpu_kind {
	unsigned int id;
	const char *id_text, *name;
	unsigned int mib;
} labgpu_kinds[] = {
	{ 901, "901", "LAB-1Q", 1024 }, { 902, "902", "LAB-2Q", 2048 }, { 904, "904", "LAB-4Q", 4096 },
};
#define LABGPU_KINDS ARRAY_SIZE(labgpu_kinds)

int labgpu_mdev_init(void);
void labgpu_mdev_exit(void);
int labgpu_mdev_probe(struct pci_dev *vf);
void labgpu_mdev_remove(struct pci_dev *vf);

int labgpu_vfio_probe(struct pci_dev *vf);
void labgpu_vfio_remove(struct pci_dev *vf);
