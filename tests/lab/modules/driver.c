// SPDX-License-Identifier: GPL-2.0
/*
 * labgpu - a PCI driver called "nvidia" that makes SR-IOV cards behave in sysfs as GPUs do under NVIDIA's vGPU host
 * driver. It takes the cards that its parameters name, and their VFs; each VF is an mdev parent (kernels before 6.8)
 * or has NVIDIA's files of its own and is a VFIO device (6.8 and later).
 */
#include <linux/module.h>
#include "labgpu.h"

static char *mdev = "", *vfio = "";
module_param(mdev, charp, 0444);
MODULE_PARM_DESC(mdev, "address of the card whose VFs are mdev parents");
module_param(vfio, charp, 0444);
MODULE_PARM_DESC(vfio, "address of the card whose VFs have vendor VFIO files");

static bool labgpu_is(struct pci_dev *pdev, const char *address)
{
	return !strcmp(pci_name(pci_physfn(pdev)), address);
}

static int labgpu_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	if (!labgpu_is(pdev, mdev) && !labgpu_is(pdev, vfio))
		return -ENODEV;
	if (!pdev->is_virtfn)
		return 0;
	return labgpu_is(pdev, mdev) ? labgpu_mdev_probe(pdev) : labgpu_vfio_probe(pdev);
}

static void labgpu_remove(struct pci_dev *pdev)
{
	if (!pdev->is_virtfn)
		pci_disable_sriov(pdev);
	else if (labgpu_is(pdev, mdev))
		labgpu_mdev_remove(pdev);
	else
		labgpu_vfio_remove(pdev);
}

static const struct pci_device_id labgpu_ids[] = { { PCI_DEVICE(0x1b36, 0x0010) }, {} };

static struct pci_driver labgpu_pci = {
	.name = "nvidia",
	.id_table = labgpu_ids,
	.probe = labgpu_probe,
	.remove = labgpu_remove,
	.sriov_configure = pci_sriov_configure_simple,
	.driver_managed_dma = true,
};

static int __init labgpu_init(void)
{
	int ret = labgpu_mdev_init();

	if (ret)
		return ret;
	ret = pci_register_driver(&labgpu_pci);
	if (ret)
		labgpu_mdev_exit();
	return ret;
}

static void __exit labgpu_exit(void)
{
	pci_unregister_driver(&labgpu_pci);
	labgpu_mdev_exit();
}

module_init(labgpu_init);
module_exit(labgpu_exit);
