// SPDX-License-Identifier: GPL-2.0
/*
 * A VF as an mdev parent: several types, of which one instance in all can be made. The mediated device itself is that
 * of the kernel's sample, whose own parent this file leaves out.
 */
#include <linux/module.h>
#undef module_init
#undef module_exit
#define module_init(f)
#define module_exit(f)
#include "mtty.c"
#include "labgpu.h"

struct labgpu_parent {
	struct mdev_parent parent;
	struct mtty_type types[LABGPU_KINDS];
	struct mdev_type *list[LABGPU_KINDS];
};

static ssize_t labgpu_description(struct mdev_type *type, char *buf)
{
	unsigned int i;

	for (i = 0; i < LABGPU_KINDS; i++)
		if (!strcmp(labgpu_kinds[i].id_text, type->sysfs_name))
			return sysfs_emit(buf, "num_heads=4, frl_config=60, framebuffer=%uM, max_instance=%u\n",
					  labgpu_kinds[i].mib, LABGPU_BOARD_MIB / labgpu_kinds[i].mib);
	return -EINVAL;
}

static struct mdev_driver labgpu_mdev = {
	.device_api = VFIO_DEVICE_API_PCI_STRING,
	.max_instances = 1,
	.driver = { .name = "nvidia-vgpu-vfio", .owner = THIS_MODULE, .mod_name = KBUILD_MODNAME },
	.probe = mtty_probe,
	.remove = mtty_remove,
	.show_description = labgpu_description,
};

int labgpu_mdev_probe(struct pci_dev *vf)
{
	struct labgpu_parent *gpu = kzalloc(sizeof(*gpu), GFP_KERNEL);
	unsigned int i;
	int ret;

	if (!gpu)
		return -ENOMEM;
	for (i = 0; i < LABGPU_KINDS; i++) {
		gpu->types[i].nr_ports = 1;
		gpu->types[i].type.sysfs_name = labgpu_kinds[i].id_text;
		gpu->types[i].type.pretty_name = labgpu_kinds[i].name;
		gpu->list[i] = &gpu->types[i].type;
	}
	ret = mdev_register_parent(&gpu->parent, &vf->dev, &labgpu_mdev, gpu->list, LABGPU_KINDS);
	if (ret)
		kfree(gpu);
	else
		pci_set_drvdata(vf, gpu);
	return ret;
}

void labgpu_mdev_remove(struct pci_dev *vf)
{
	struct labgpu_parent *gpu = pci_get_drvdata(vf);

	mdev_unregister_parent(&gpu->parent);
	kfree(gpu);
}

int labgpu_mdev_init(void)
{
	atomic_set(&mdev_avail_ports, INT_MAX);
	return mdev_register_driver(&labgpu_mdev);
}

void labgpu_mdev_exit(void)
{
	mdev_unregister_driver(&labgpu_mdev);
}
